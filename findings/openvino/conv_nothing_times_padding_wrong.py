"""OpenVINO 2026.4.1 CPU ACCURACY: Conv: wrong (nothing times padding)

Rule (disputed): Padding is never multiplied: an infinite or NaN weight on padding gives nothing.

Result: output 0[0, 0, 1, 2] is -3.4028234663852886e+38, expected -inf (122 of 216 elements differ)

Discussed at https://github.com/onnx/onnx/issues/3254.

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_2d_depthwise_with_infinite_weights_on_padding_float64_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], group=6, kernel_shape=[3, 3], pads=[2, 2, 2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, inf, -8.0, inf, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, inf, -5.0, 2.0, -3.0, -3.0, -4.0, inf, 3.0, -5.0, -3.0, inf, -2.0, 2.0, -3.0, 5.0, -5.0, 5.0, inf, -7.0, inf, 3.0, 2.0, inf, 6.0, 2.0, -4.0, 2.0, inf, -5.0, -5.0, -1.0, -3.0, 1.0, inf, -8.0, 7.0, -6.0, 5.0, 6.0, -4.0, -1.0]).astype('float64').reshape((6, 1, 3, 3)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0, -3.0, 7.0, 8.0]).astype('float64').reshape((6,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -2.0, 3.0, 7.0, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -5.0, 8.0, -3.0, 1.0, 0.0, 8.0, 7.0, 4.0, 4.0, -6.0, 5.0, -2.0, -5.0, 1.0, -8.0, 2.0, -2.0, 7.0, -3.0, 2.0, -1.0, -4.0, -6.0, 4.0, 0.0, 6.0, 6.0]).astype('float64').reshape((1, 6, 4, 4)),
]
EXPECTED = [
    np.array([-17.0, 41.0, -72.0, 39.0, -23.0, -10.0, 24.0, -52.0, -inf, inf, -inf, -inf, 106.0, -inf, nan, -inf, -inf, inf, 3.0, -inf, nan, -inf, nan, inf, -42.0, inf, -inf, nan, nan, -inf, 20.0, -inf, inf, -inf, -inf, 16.0, 7.0, 10.0, -8.0, 2.0, 9.0, -8.0, 34.0, -inf, -inf, inf, -inf, -9.0, 33.0, -inf, -inf, inf, inf, 40.0, 1.0, inf, -inf, inf, inf, 63.0, -16.0, inf, -inf, inf, inf, 25.0, -5.0, 25.0, -51.0, -16.0, 24.0, 3.0, -17.0, 29.0, -19.0, 39.0, -13.0, 23.0, inf, -inf, inf, -inf, 29.0, 53.0, -inf, nan, -inf, nan, -inf, 60.0, inf, nan, -inf, -inf, -inf, 42.0, inf, inf, inf, -inf, -inf, 39.0, 31.0, inf, inf, inf, -inf, 23.0, inf, inf, -inf, inf, -4.0, 9.0, inf, inf, nan, nan, -inf, inf, nan, nan, nan, nan, -inf, -inf, -inf, nan, nan, -inf, inf, -inf, -inf, inf, nan, nan, inf, -inf, -13.0, 22.0, 7.0, -38.0, 47.0, -18.0, 16.0, 28.0, 13.0, 14.0, -24.0, -23.0, -2.0, -inf, -inf, inf, inf, 34.0, -24.0, inf, -inf, inf, -inf, 2.0, -42.0, inf, nan, inf, inf, -22.0, -17.0, inf, inf, -inf, inf, 59.0, -9.0, -1.0, 63.0, -1.0, -19.0, 37.0, 10.0, 21.0, 15.0, -18.0, 46.0, -40.0, -4.0, -11.0, 42.0, -110.0, 117.0, -66.0, 32.0, -inf, -inf, inf, -inf, -57.0, -2.0, inf, -inf, inf, -inf, -1.0, 12.0, inf, -inf, -inf, -inf, 44.0, -24.0, inf, nan, inf, inf, 14.0]).astype('float64').reshape((1, 6, 6, 6)),
]
BOUNDS = [
    np.array([3.0531133177191805e-14, 5.007105841059456e-14, 9.769962616701378e-14, 6.228351168147128e-14, 5.739853037312059e-14, 2.19824158875781e-14, 6.59472476627343e-14, 1.2212453270876722e-13, 0.0, 0.0, 0.0, 0.0, 1.2945200467129325e-13, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0380585280245214e-13, 0.0, 0.0, 0.0, 0.0, 0.0, 8.548717289613705e-14, 0.0, 0.0, 0.0, 0.0, 0.0, 2.4424906541753444e-14, 0.0, 0.0, 0.0, 0.0, 1.9539925233402755e-14, 1.3433698597964394e-14, 1.709743457922741e-14, 1.709743457922741e-14, 1.9539925233402755e-14, 1.587618925213974e-14, 9.769962616701378e-15, 4.6407322429331543e-14, 0.0, 0.0, 0.0, 0.0, 4.518607710224387e-14, 6.716849298982197e-14, 0.0, 0.0, 0.0, 0.0, 9.037215420448774e-14, 5.007105841059456e-14, 0.0, 0.0, 0.0, 0.0, 8.182343691487404e-14, 1.9539925233402755e-14, 0.0, 0.0, 0.0, 0.0, 3.5416114485542494e-14, 6.106226635438361e-15, 3.5416114485542494e-14, 7.4495964952348e-14, 7.815970093361102e-14, 3.419486915845482e-14, 8.548717289613705e-15, 3.785860513971784e-14, 3.5416114485542494e-14, 4.030109579389318e-14, 4.7628567756419216e-14, 3.297362383136715e-14, 2.808864252301646e-14, 0.0, 0.0, 0.0, 0.0, 7.4495964952348e-14, 6.472600233564663e-14, 0.0, 0.0, 0.0, 0.0, 0.0, 7.327471962526033e-14, 0.0, 0.0, 0.0, 0.0, 0.0, 5.129230373768223e-14, 0.0, 0.0, 0.0, 0.0, 0.0, 4.7628567756419216e-14, 3.785860513971784e-14, 0.0, 0.0, 0.0, 0.0, 2.808864252301646e-14, 0.0, 0.0, 0.0, 0.0, 2.4424906541753444e-14, 1.8318679906315083e-14, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.587618925213974e-14, 3.419486915845482e-14, 7.693845560652335e-14, 8.304468224196171e-14, 6.472600233564663e-14, 2.19824158875781e-14, 1.9539925233402755e-14, 3.419486915845482e-14, 5.2513549064769904e-14, 7.327471962526033e-14, 4.6407322429331543e-14, 4.518607710224387e-14, 5.617728504603292e-14, 0.0, 0.0, 0.0, 0.0, 4.1522341120980855e-14, 7.571721027943568e-14, 0.0, 0.0, 0.0, 0.0, 1.0258460747536446e-13, 6.838973831690964e-14, 0.0, 0.0, 0.0, 0.0, 7.815970093361102e-14, 3.785860513971784e-14, 0.0, 0.0, 0.0, 0.0, 7.205347429817266e-14, 2.808864252301646e-14, 3.785860513971784e-14, 7.693845560652335e-14, 7.693845560652335e-14, 6.472600233564663e-14, 4.518607710224387e-14, 1.2212453270876722e-14, 2.5646151868841116e-14, 5.007105841059456e-14, 6.106226635438361e-14, 5.617728504603292e-14, 6.838973831690964e-14, 2.4424906541753444e-14, 6.716849298982197e-14, 1.0258460747536446e-13, 1.6120438317557273e-13, 1.4288570326925765e-13, 1.0014211682118912e-13, 4.39648317751562e-14, 0.0, 0.0, 0.0, 0.0, 8.915090887740007e-14, 4.6407322429331543e-14, 0.0, 0.0, 0.0, 0.0, 1.0869083411080283e-13, 5.3734794391857577e-14, 0.0, 0.0, 0.0, 0.0, 6.838973831690964e-14, 4.884981308350689e-14, 0.0, 0.0, 0.0, 0.0, 1.709743457922741e-14]).astype('float64').reshape((1, 6, 6, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 6, 4, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=4)

from collections.abc import Sequence
from typing import Any
import ml_dtypes
import numpy as np
import openvino


def version(option: str) -> str:
    """Name OpenVINO's version, the device and the mode."""
    return f"OpenVINO {openvino.__version__.partition('-')[0]} {' '.join(_device_and_mode(option))}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Read, compile and run the model; its outputs keep their types."""
    core = openvino.Core()
    device, mode = _device_and_mode(option)
    compiled = core.compile_model(core.read_model(model.SerializeToString()), device, {"EXECUTION_MODE_HINT": mode})
    request = compiled.create_infer_request()
    request.infer({number: _tensor(array) for number, array in enumerate(inputs)})
    return [_array(request.get_output_tensor(number)) for number in range(len(compiled.outputs))]


def _device_and_mode(option: str) -> tuple[str, str]:
    device, _, mode = option.partition(",")
    return device or "CPU", mode or "ACCURACY"


def _tensor(array: Any) -> Any:
    if array.dtype.name != "bfloat16":
        return openvino.Tensor(np.ascontiguousarray(array))
    tensor = openvino.Tensor(openvino.Type.bf16, openvino.Shape(array.shape))
    tensor.data.view(np.uint16)[...] = array.view(np.uint16)
    return tensor


def _array(tensor: Any) -> Any:
    bits = tensor.data.copy()
    return bits.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else bits

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
