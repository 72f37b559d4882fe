"""tinygrad 0.14.0 CPU: Conv: wrong (all ranks)

Rule (specified): The same rule holds for every rank (1-D to N-D spatial).

Result: output 0 has the shape (1, 3, 4, 2, 1), expected (1, 3, 4, 3, 3)

The result equals SAME that pads for the kernel without its dilation.

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_3d_same_lower_with_dilation_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_LOWER', dilations=[1, 2, 3], kernel_shape=[2, 2, 2], strides=[1, 2, 1])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0, -2.0, 2.0, -3.0, 5.0, -5.0, 5.0, -8.0, -7.0, -1.0, 3.0, 2.0, 5.0, 6.0, 2.0, -4.0, 2.0, 0.0, -5.0, -5.0, -1.0, -3.0, 1.0, -4.0, -8.0]).astype('float32').reshape((3, 2, 2, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -2.0, 3.0, 7.0, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -5.0, 8.0, -3.0, 1.0, 0.0, 8.0, 7.0, 4.0, 4.0, -6.0, 5.0, -2.0, -5.0, 1.0, -8.0, 2.0, -2.0, 7.0, -3.0, 2.0, -1.0, -4.0, -6.0, 4.0, 0.0, 6.0, 6.0, -6.0, 5.0, 5.0, 0.0, 3.0, 7.0, -5.0, 3.0, 5.0, -6.0, 6.0, 6.0, -2.0, -3.0, 0.0, 6.0, -4.0, -5.0, 2.0, 7.0, 1.0, 7.0, 4.0, 6.0]).astype('float32').reshape((1, 2, 4, 5, 3)),
]
EXPECTED = [
    np.array([18.0, 8.0, 5.0, 74.0, 24.0, -41.0, 5.0, -2.0, -66.0, 40.0, 50.0, 39.0, -52.0, -9.0, -15.0, 35.0, -39.0, 34.0, -4.0, 61.0, -54.0, -10.0, -46.0, -63.0, -43.0, 38.0, -17.0, -46.0, 6.0, 79.0, 36.0, 12.0, 15.0, 20.0, 88.0, -18.0, 54.0, 68.0, 28.0, -13.0, -12.0, 62.0, 63.0, -32.0, 8.0, -61.0, 7.0, 60.0, 92.0, -58.0, 53.0, 34.0, -7.0, 22.0, -51.0, -40.0, 18.0, -26.0, 87.0, -8.0, 8.0, 22.0, -24.0, 19.0, 1.0, 1.0, -49.0, 145.0, 49.0, 43.0, 51.0, -21.0, 21.0, 47.0, 27.0, -80.0, 23.0, 44.0, 5.0, 10.0, -8.0, -61.0, -5.0, 38.0, -17.0, -19.0, 28.0, -56.0, 48.0, 24.0, -57.0, -90.0, 47.0, -50.0, -48.0, 2.0, 15.0, -2.0, -14.0, 47.0, -45.0, -17.0, -61.0, -74.0, 67.0, 1.0, -37.0, -32.0]).astype('float32').reshape((1, 3, 4, 3, 3)),
]
BOUNDS = [
    np.array([3.218650817871094e-05, 3.4332275390625e-05, 3.540515899658203e-05, 7.939338684082031e-05, 6.437301635742188e-05, 0.0001062154769897461, 5.6862831115722656e-05, 3.0040740966796875e-05, 7.939338684082031e-05, 4.291534423828125e-05, 6.222724914550781e-05, 8.046627044677734e-05, 0.00013303756713867188, 0.00015556812286376953, 0.00017917156219482422, 0.00010192394256591797, 8.90493392944336e-05, 6.866455078125e-05, 4.506111145019531e-05, 6.54458999633789e-05, 6.651878356933594e-05, 0.00010514259338378906, 0.00017380714416503906, 0.00010192394256591797, 5.4717063903808594e-05, 0.00010728836059570312, 3.9696693420410156e-05, 5.793571472167969e-05, 4.506111145019531e-05, 8.475780487060547e-05, 0.0001266002655029297, 0.0001652240753173828, 0.0001577138900756836, 6.651878356933594e-05, 0.00010085105895996094, 7.081031799316406e-05, 6.222724914550781e-05, 7.724761962890625e-05, 3.4332275390625e-05, 0.00014269351959228516, 0.00010085105895996094, 8.368492126464844e-05, 7.18832015991211e-05, 3.4332275390625e-05, 4.506111145019531e-05, 0.00011050701141357422, 0.00012767314910888672, 7.510185241699219e-05, 0.00018024444580078125, 0.00020170211791992188, 0.00011479854583740234, 6.222724914550781e-05, 8.26120376586914e-05, 4.935264587402344e-05, 0.00010836124420166016, 0.00016307830810546875, 3.218650817871094e-05, 0.00013303756713867188, 0.00024139881134033203, 5.364418029785156e-05, 4.291534423828125e-05, 8.153915405273438e-05, 2.574920654296875e-05, 0.00011479854583740234, 0.00010836124420166016, 5.042552947998047e-05, 0.00016629695892333984, 0.0001748800277709961, 9.119510650634766e-05, 6.330013275146484e-05, 7.18832015991211e-05, 4.184246063232422e-05, 4.398822784423828e-05, 6.759166717529297e-05, 2.8967857360839844e-05, 0.00010085105895996094, 5.4717063903808594e-05, 7.295608520507812e-05, 2.682209014892578e-05, 1.71661376953125e-05, 5.5789947509765625e-05, 8.690357208251953e-05, 6.759166717529297e-05, 5.793571472167969e-05, 0.00011050701141357422, 0.00015985965728759766, 9.441375732421875e-05, 7.510185241699219e-05, 5.14984130859375e-05, 3.8623809814453125e-05, 8.475780487060547e-05, 0.00011587142944335938, 5.042552947998047e-05, 0.000102996826171875, 0.00016307830810546875, 5.14984130859375e-05, 3.540515899658203e-05, 7.295608520507812e-05, 3.0040740966796875e-05, 6.330013275146484e-05, 6.330013275146484e-05, 5.042552947998047e-05, 0.0001405477523803711, 0.00011587142944335938, 0.00010192394256591797, 4.184246063232422e-05, 6.973743438720703e-05, 5.5789947509765625e-05]).astype('float64').reshape((1, 3, 4, 3, 3)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 4, 5, 3]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

from collections.abc import Sequence
from importlib import metadata
from typing import Any
import ml_dtypes
import numpy as np
from tinygrad import Device, Tensor, dtypes
from tinygrad.nn.onnx import OnnxRunner


def version(option: str) -> str:
    """Name tinygrad's version and the device."""
    return f"tinygrad {metadata.version('tinygrad')} {Device.DEFAULT}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Run the model."""
    runner = OnnxRunner(Tensor(np.frombuffer(model.SerializeToString(), np.uint8)))
    names = [value.name for value in model.graph.input]
    found = runner({name: _tensor(array) for name, array in zip(names, inputs, strict=True)})
    return [_array(found[value.name]) for value in model.graph.output]


def _tensor(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return Tensor(array.view(np.uint16)).bitcast(dtypes.bfloat16)
    return Tensor(array)


def _array(output: Any) -> Any:
    if output.dtype == dtypes.bfloat16:
        return output.bitcast(dtypes.uint16).numpy().view(ml_dtypes.bfloat16)
    return output.numpy()

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
