"""gpuconv.dask on a cluster of two worker processes: the values of one call, even if a worker dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.dask.in_chunks import da, dask, in_chunks
from tests.oracle.operands import BFLOAT16, values
from tests.oracle.oracle import assert_same

dask_api = pytest.importorskip("gpuconv.dask")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,  # starts three processes
    pytest.mark.filterwarnings("ignore"),  # those of the cluster's own threads and sockets
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed; the extra [dev] brings it")
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ.GPUCONV_NUM_THREADS": "1"}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(tmp_path_factory.mktemp("workers")),
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield client


def _computed(client: Any, *arrays: Any) -> Any:
    """Return the arrays from the cluster; raise an error if that takes too long."""
    futures = client.compute(list(arrays))
    pytest.importorskip("distributed").wait(futures, timeout=120)
    return client.gather(futures)


def _network(x: Any, w: Any, back: Any, dask_or_not: Any) -> tuple[Any, Any, Any]:
    y = dask_or_not.conv(x, w, strides=[2, 1], pads=[1, 2, 0, 1])
    pooled, indices = dask_or_not.max_pool(y, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, return_indices=True)
    return pooled, indices, dask_or_not.conv_transpose(pooled, back, strides=[4, 2], output_padding=[3, 1])


@pytest.mark.parametrize("dtype", [np.dtype("float32"), BFLOAT16], ids=str)
def test_a_network_gives_what_one_process_gives(client: Any, dtype: Any) -> None:
    x = values("integers", 0, (3, 4, 37, 29), dtype)
    w, back = values("ties", 1, (6, 4, 3, 4), dtype), values("ties", 2, (6, 2, 4, 3), dtype)
    expected = _network(x, w, back, gpuconv)
    found = _network(in_chunks(x, (2, 4, (10, 20, 7), 11)), gpuconv.pack(w), back, dask_api)
    for result, wanted in zip(_computed(client, *found), expected, strict=True):
        assert_same(result, wanted, bits=False)


def test_the_environment_of_the_workers_is_ours_to_set(client: Any) -> None:
    assert set(client.run(os.environ.get, "GPUCONV_NUM_THREADS").values()) == {"1"}


def _block(mark: Path, block_info: Any = None) -> Any:
    """Return a block of numbers that depend on its position; the first process to compute the last block dies."""
    (start, stop) = block_info[None]["array-location"][2]
    if start == 90:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return np.arange(start, stop, dtype=np.float32).reshape(1, 1, -1) % 7


def test_a_worker_that_dies_meanwhile_costs_its_blocks_and_no_more(client: Any, tmp_path: Path) -> None:
    mark = tmp_path / "died"
    workers = set(client.run(os.getpid).values())
    x = da.map_blocks(partial(_block, mark), chunks=((1,), (1,), (10,) * 10), dtype=np.float32)
    w = values("integers", 1, (2, 1, 5), "float32")
    y, indices = dask_api.max_pool(dask_api.conv(x, w), kernel_shape=[4], strides=[3], return_indices=True)
    found = _computed(client, y, indices)
    assert mark.exists()
    client.wait_for_workers(2, timeout=60)
    assert len(workers & set(client.run(os.getpid).values())) == 1
    whole = np.arange(100, dtype=np.float32).reshape(1, 1, -1) % 7
    expected = gpuconv.max_pool(gpuconv.conv(whole, w), kernel_shape=[4], strides=[3], return_indices=True)
    for result, wanted in zip(found, expected, strict=True):
        assert_same(result, wanted, bits=False)
