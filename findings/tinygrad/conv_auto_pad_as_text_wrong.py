"""tinygrad 0.14.0 CPU: Conv: wrong (auto_pad as text)

Rule (ruled here): auto_pad: "" and bytes are accepted as their plain meaning.

Result: output 0[0, 0, 0, 0] is -5.0, expected 81.0 (89 of 90 elements differ, by up to 3.82e+06 times the bound)

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_2d_auto_pad_of_no_letters_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], auto_pad=b'', kernel_shape=[2, 2], pads=[1, 0, 0, 1])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0]).astype('float32').reshape((3, 2, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0]).astype('float32').reshape((1, 2, 5, 6)),
]
EXPECTED = [
    np.array([81.0, -40.0, 110.0, 3.0, 94.0, -20.0, 80.0, -59.0, -20.0, -30.0, 87.0, -54.0, 14.0, 4.0, -12.0, 6.0, 98.0, -8.0, 34.0, 18.0, 40.0, 50.0, 19.0, -50.0, -52.0, 62.0, -137.0, -40.0, 86.0, 67.0, -71.0, 42.0, -70.0, 15.0, -46.0, 14.0, -2.0, -59.0, 121.0, -49.0, -44.0, -62.0, -29.0, 96.0, -70.0, -100.0, -32.0, 35.0, -18.0, -79.0, 11.0, -83.0, 7.0, -11.0, 70.0, -34.0, -31.0, 70.0, 46.0, 10.0, 34.0, -94.0, 5.0, -23.0, 53.0, 47.0, 61.0, 66.0, 46.0, -3.0, 98.0, -23.0, 65.0, -46.0, -75.0, -3.0, 34.0, 20.0, -72.0, -72.0, 21.0, 30.0, 41.0, -42.0, 6.0, 174.0, 70.0, -30.0, -91.0, 29.0]).astype('float32').reshape((1, 3, 5, 6)),
]
BOUNDS = [
    np.array([5.6624412536621094e-05, 4.291534423828125e-05, 6.556510925292969e-05, 2.8014183044433594e-05, 5.602836608886719e-05, 5.4836273193359375e-05, 7.152557373046875e-05, 8.165836334228516e-05, 0.00012755393981933594, 8.106231689453125e-05, 9.357929229736328e-05, 6.318092346191406e-05, 5.245208740234375e-05, 9.5367431640625e-05, 0.00011324882507324219, 9.059906005859375e-05, 7.033348083496094e-05, 3.5762786865234375e-05, 8.344650268554688e-05, 9.5367431640625e-05, 0.0001227855682373047, 8.702278137207031e-05, 7.450580596923828e-05, 7.033348083496094e-05, 0.00010728836059570312, 0.00010967254638671875, 0.00012218952178955078, 9.5367431640625e-05, 9.179115295410156e-05, 6.496906280517578e-05, 4.470348358154297e-05, 3.337860107421875e-05, 4.887580871582031e-05, 2.562999725341797e-05, 4.172325134277344e-05, 3.933906555175781e-05, 6.437301635742188e-05, 6.73532485961914e-05, 0.00011146068572998047, 6.973743438720703e-05, 7.62939453125e-05, 5.841255187988281e-05, 4.470348358154297e-05, 6.794929504394531e-05, 0.00010371208190917969, 7.748603820800781e-05, 5.7220458984375e-05, 3.039836883544922e-05, 6.556510925292969e-05, 7.927417755126953e-05, 0.0001055002212524414, 7.331371307373047e-05, 6.61611557006836e-05, 5.6624412536621094e-05, 8.821487426757812e-05, 9.298324584960938e-05, 0.00010192394256591797, 7.62939453125e-05, 8.225440979003906e-05, 5.841255187988281e-05, 4.291534423828125e-05, 6.437301635742188e-05, 4.589557647705078e-05, 3.8743019104003906e-05, 6.73532485961914e-05, 2.8014183044433594e-05, 5.3048133850097656e-05, 0.00010251998901367188, 9.655952453613281e-05, 6.973743438720703e-05, 8.225440979003906e-05, 3.635883331298828e-05, 4.947185516357422e-05, 8.821487426757812e-05, 9.357929229736328e-05, 7.450580596923828e-05, 6.079673767089844e-05, 2.2649765014648438e-05, 7.62939453125e-05, 9.417533874511719e-05, 9.357929229736328e-05, 7.510185241699219e-05, 8.285045623779297e-05, 3.695487976074219e-05, 7.867813110351562e-05, 0.00010371208190917969, 0.00010013580322265625, 7.987022399902344e-05, 8.165836334228516e-05, 4.2319297790527344e-05]).astype('float64').reshape((1, 3, 5, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 5, 6]),
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
