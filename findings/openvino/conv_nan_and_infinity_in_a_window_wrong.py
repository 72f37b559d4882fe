"""OpenVINO 2026.4.1 CPU ACCURACY: Conv: wrong (NaN and infinity in a window)

Rule (ruled here): Where a NaN or inf enters a window: NaN or inf as IEEE arithmetic over the taps inside the input gives.

Result: output 0[0, 0, 2, 2] is 3.4028234663852886e+38, expected inf (18 of 108 elements differ)

Test test_conv_2d_plus_infinity_among_positive_numbers_float64_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], kernel_shape=[2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([3.0, 7.0, 9.0, 2.0, 8.0, 6.0, 8.0, 5.0, 4.0, 6.0, 7.0, 4.0, 8.0, 4.0, 6.0, 3.0, 4.0, 4.0, 5.0, 7.0, 4.0, 6.0, 4.0, 8.0]).astype('float64').reshape((3, 2, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float64').reshape((3,)), "B"),
]
INPUTS = [
    np.array([8.0, 4.0, 6.0, 3.0, 6.0, 5.0, 5.0, 2.0, 8.0, 6.0, 6.0, 4.0, 3.0, 3.0, 2.0, 7.0, 4.0, 2.0, 2.0, 4.0, 8.0, 6.0, 4.0, 8.0, 4.0, 4.0, 6.0, 5.0, 2.0, 8.0, 5.0, 2.0, 9.0, 3.0, 3.0, 9.0, 3.0, 2.0, 8.0, 4.0, 3.0, 3.0, 4.0, 4.0, 9.0, 3.0, 4.0, 5.0, 8.0, 7.0, 4.0, 5.0, 4.0, 5.0, 7.0, 3.0, 9.0, 5.0, 7.0, 2.0, 3.0, 4.0, 8.0, 4.0, 4.0, 7.0, 6.0, 7.0, 9.0, 6.0, 9.0, 4.0, 2.0, inf, 9.0, 8.0, 5.0, 5.0, 7.0, 6.0, 3.0, 6.0, 2.0, 9.0, 3.0, 3.0, 8.0, 4.0, 3.0, 2.0, 5.0, 7.0, 5.0, inf, 7.0, 7.0, 7.0, 6.0]).astype('float64').reshape((1, 2, 7, 7)),
]
EXPECTED = [
    np.array([267.0, 279.0, 239.0, 210.0, 225.0, 233.0, 252.0, 290.0, 258.0, 189.0, 212.0, 268.0, 269.0, 221.0, inf, inf, 308.0, 333.0, 255.0, 284.0, inf, inf, 323.0, 245.0, 274.0, 250.0, 217.0, 260.0, 188.0, 178.0, 219.0, inf, inf, 232.0, 210.0, 227.0, 241.0, 233.0, 210.0, 177.0, 190.0, 197.0, 224.0, 244.0, 218.0, 153.0, 171.0, 224.0, 220.0, 200.0, inf, inf, 252.0, 283.0, 231.0, 238.0, inf, inf, 271.0, 208.0, 224.0, 211.0, 196.0, 213.0, 172.0, 140.0, 189.0, inf, inf, 198.0, 175.0, 191.0, 249.0, 251.0, 203.0, 179.0, 198.0, 209.0, 220.0, 260.0, 205.0, 177.0, 209.0, 255.0, 209.0, 217.0, inf, inf, 275.0, 264.0, 249.0, 234.0, inf, inf, 237.0, 229.0, 211.0, 228.0, 207.0, 207.0, 160.0, 177.0, 201.0, inf, inf, 216.0, 198.0, 226.0]).astype('float64').reshape((1, 3, 6, 6)),
]
BOUNDS = [
    np.array([2.964295475749168e-13, 3.097522238704187e-13, 2.653433028854124e-13, 2.3314683517128287e-13, 2.498001805406602e-13, 2.5868196473766147e-13, 2.7977620220553945e-13, 3.219646771412954e-13, 2.864375403532904e-13, 2.0983215165415459e-13, 2.353672812205332e-13, 2.9753977059954195e-13, 2.986499936241671e-13, 2.453592884421596e-13, 0.0, 0.0, 3.419486915845482e-13, 3.6970426720017713e-13, 2.831068712794149e-13, 3.1530333899354446e-13, 0.0, 0.0, 3.5860203695392556e-13, 2.7200464103316335e-13, 3.042011087472929e-13, 2.7755575615628914e-13, 2.4091839634365897e-13, 2.886579864025407e-13, 2.0872192862952943e-13, 1.9761969838327786e-13, 2.431388423929093e-13, 0.0, 0.0, 2.575717417130363e-13, 2.3314683517128287e-13, 2.5202062658991053e-13, 2.7200464103316335e-13, 2.631228568361621e-13, 2.375877272697835e-13, 2.0095036745715333e-13, 2.1538326677728037e-13, 2.2315482794965646e-13, 2.531308496145357e-13, 2.753353101070388e-13, 2.4646951146678475e-13, 1.7430501486614958e-13, 1.942890293094024e-13, 2.531308496145357e-13, 2.4868995751603507e-13, 2.2648549702353193e-13, 0.0, 0.0, 2.8421709430404007e-13, 3.1863400806741993e-13, 2.609024107869118e-13, 2.686739719592879e-13, 0.0, 0.0, 3.0531133177191805e-13, 2.353672812205332e-13, 2.531308496145357e-13, 2.3869795029440866e-13, 2.220446049250313e-13, 2.4091839634365897e-13, 1.9539925233402755e-13, 1.5987211554602254e-13, 2.142730437526552e-13, 0.0, 0.0, 2.2426505097428162e-13, 1.9872992140790302e-13, 2.1649348980190553e-13, 2.76445533131664e-13, 2.786659791809143e-13, 2.2537527399890678e-13, 1.9872992140790302e-13, 2.19824158875781e-13, 2.320366121466577e-13, 2.4424906541753444e-13, 2.886579864025407e-13, 2.275957200481571e-13, 1.965094753586527e-13, 2.320366121466577e-13, 2.831068712794149e-13, 2.320366121466577e-13, 2.4091839634365897e-13, 0.0, 0.0, 3.0531133177191805e-13, 2.9309887850104133e-13, 2.76445533131664e-13, 2.5979218776228663e-13, 0.0, 0.0, 2.631228568361621e-13, 2.5424107263916085e-13, 2.3425705819590803e-13, 2.531308496145357e-13, 2.298161660974074e-13, 2.298161660974074e-13, 1.7763568394002505e-13, 1.965094753586527e-13, 2.2315482794965646e-13, 0.0, 0.0, 2.398081733190338e-13, 2.19824158875781e-13, 2.509104035652854e-13]).astype('float64').reshape((1, 3, 6, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 2, 7, 7]),
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
