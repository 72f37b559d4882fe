"""tinygrad 0.14.0 CPU: ConvTranspose: wrong (ConvTranspose sizes)

Rule (specified): ConvTranspose sizes: natural = s*(n-1) + output_padding + ek - pads.

Result: output 0 has the shape (1, 3, 6, 4), expected (1, 3, 7, 5)

Discussed at https://github.com/microsoft/onnxruntime/issues/2518.

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_2d_valid_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], auto_pad=b'VALID', kernel_shape=[3, 2], strides=[2, 1])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0, -2.0, 2.0, -3.0, 5.0, -5.0, 5.0, -8.0, -7.0, -1.0, 3.0, 2.0, 5.0]).astype('float32').reshape((2, 3, 3, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0]).astype('float32').reshape((1, 2, 3, 4)),
]
EXPECTED = [
    np.array([26.0, -64.0, 48.0, -4.0, -44.0, 54.0, 3.0, 28.0, 12.0, 36.0, -17.0, 32.0, -83.0, 32.0, 44.0, 35.0, 53.0, 48.0, -14.0, 18.0, -8.0, 55.0, -62.0, -13.0, 80.0, -73.0, 57.0, 83.0, -9.0, -34.0, 74.0, -2.0, 20.0, 8.0, -60.0, -47.0, 39.0, -43.0, 14.0, -6.0, -17.0, -44.0, 11.0, -20.0, -42.0, -63.0, 5.0, -42.0, 57.0, -36.0, -8.0, -51.0, -42.0, -5.0, -12.0, 46.0, -88.0, -55.0, 69.0, -18.0, 40.0, -2.0, -76.0, -24.0, 48.0, 75.0, -63.0, -57.0, 11.0, 24.0, -26.0, 47.0, -43.0, 63.0, 55.0, 44.0, -30.0, 45.0, 10.0, -15.0, 13.0, 29.0, 4.0, 47.0, 1.0, 35.0, 9.0, 15.0, 0.0, 0.0, 121.0, 50.0, 19.0, -26.0, -69.0, -21.0, 30.0, 4.0, -16.0, 34.0, -28.0, -44.0, 18.0, 42.0, 33.0]).astype('float32').reshape((1, 3, 7, 5)),
]
BOUNDS = [
    np.array([2.1696090698242188e-05, 6.008148193359375e-05, 4.00543212890625e-05, 5.6743621826171875e-05, 4.3392181396484375e-05, 5.507469177246094e-05, 4.2557716369628906e-05, 5.0067901611328125e-05, 4.00543212890625e-05, 3.0040740966796875e-05, 6.759166717529297e-05, 0.00011682510375976562, 9.429454803466797e-05, 9.34600830078125e-05, 6.67572021484375e-05, 4.4226646423339844e-05, 4.9233436584472656e-05, 4.00543212890625e-05, 2.5033950805664062e-05, 1.6689300537109375e-05, 7.510185241699219e-05, 0.0001627206802368164, 0.0001201629638671875, 0.00010764598846435547, 7.510185241699219e-05, 6.759166717529297e-05, 8.428096771240234e-05, 6.92605972290039e-05, 5.7578086853027344e-05, 3.504753112792969e-05, 6.175041198730469e-05, 0.00011515617370605469, 9.012222290039062e-05, 7.677078247070312e-05, 5.6743621826171875e-05, 4.589557647705078e-05, 4.9233436584472656e-05, 4.589557647705078e-05, 4.172325134277344e-05, 1.8358230590820312e-05, 2.4199485778808594e-05, 5.173683166503906e-05, 3.7550926208496094e-05, 4.673004150390625e-05, 3.504753112792969e-05, 7.927417755126953e-05, 9.763240814208984e-05, 8.678436279296875e-05, 7.927417755126953e-05, 4.00543212890625e-05, 2.1696090698242188e-05, 4.756450653076172e-05, 3.504753112792969e-05, 3.254413604736328e-05, 1.8358230590820312e-05, 9.179115295410156e-05, 0.00012350082397460938, 9.930133819580078e-05, 8.428096771240234e-05, 3.838539123535156e-05, 3.6716461181640625e-05, 8.511543273925781e-05, 6.341934204101562e-05, 6.008148193359375e-05, 4.3392181396484375e-05, 6.592273712158203e-05, 9.429454803466797e-05, 7.259845733642578e-05, 7.092952728271484e-05, 3.838539123535156e-05, 6.008148193359375e-05, 6.592273712158203e-05, 6.091594696044922e-05, 7.593631744384766e-05, 4.589557647705078e-05, 3.6716461181640625e-05, 3.6716461181640625e-05, 3.7550926208496094e-05, 3.0040740966796875e-05, 2.4199485778808594e-05, 7.593631744384766e-05, 0.00010263919830322266, 8.177757263183594e-05, 7.927417755126953e-05, 5.5909156799316406e-05, 2.9206275939941406e-05, 3.921985626220703e-05, 3.254413604736328e-05, 2.1696090698242188e-05, 1.5020370483398438e-05, 0.00011098384857177734, 0.00016355514526367188, 0.0001226663589477539, 0.00012183189392089844, 6.92605972290039e-05, 4.088878631591797e-05, 6.008148193359375e-05, 5.0067901611328125e-05, 4.00543212890625e-05, 2.8371810913085938e-05, 3.504753112792969e-05, 7.343292236328125e-05, 5.6743621826171875e-05, 5.0067901611328125e-05, 4.2557716369628906e-05]).astype('float64').reshape((1, 3, 7, 5)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 3, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
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
