"""Mutants of Python modules that `python` need not notice, by reason.

Mutants in `EQUIVALENT` compute the same. Functions and constants in `CHOICES` choose among tiles, blocks and
algorithms; tests ensure that any choice fits, covers all outputs and gives the same results, so a surviving mutant
there changes only the time. The same holds for the fields in `FIELDS` in table rows, and for additional copies.
Divisions in `EXACT` have no remainder, so rounding up gives the same.
"""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "A single channel belongs to the first group.": (
        "dask/_convolve.py _task: … nels.start) // max(geometry.x_shape[1], 1) or geometry.group, 'strides': geometry …  ->  … nels.start) // max(geometry.x_shape[1], 2) or geometry.group, 'strides': geometry …",  # noqa: E501
    ),
    "Small images are multiplied together or separately, with the same results.": (
        "cpu/_scatter.py _ScatteredProduct._parts: if count > 1 and (not self.invariant) and (prod(positions) < _WIDE):  ->  if count >= 1 and (not self.invariant) and (prod(positions) < _WIDE):",  # noqa: E501
        "cpu/_scatter.py _ScatteredProduct._parts: if count > 1 and (not self.invariant) and (prod(positions) < _WIDE):  ->  if count < 1 and (not self.invariant) and (prod(positions) < _WIDE):",  # noqa: E501
        "cpu/_scatter.py _ScatteredProduct._parts: if count > 1 and (not self.invariant) and (prod(positions) < _WIDE):  ->  if count > 2 and (not self.invariant) and (prod(positions) < _WIDE):",  # noqa: E501
        "cpu/_scatter.py _ScatteredProduct._parts: if count > 1 and (not self.invariant) and (prod(positions) < _WIDE):  ->  if count > 0 and (not self.invariant) and (prod(positions) < _WIDE):",  # noqa: E501
        "cpu/_scatter.py _ScatteredProduct._parts: if count > 1 and (not self.invariant) and (prod(positions) < _WIDE):  ->  if count > 1 and (not self.invariant) and (prod(positions) <= _WIDE):",  # noqa: E501
    ),
    "No number exceeds infinity.": (
        "onnx/operators/affine.py _acted: if parsed.low > -np.inf:  ->  if parsed.low >= -np.inf:",
        "onnx/operators/affine.py _acted: return xp.minimum(parsed.high, y) if parsed.high < np.inf else y  ->  return xp.minimum(parsed.high, y) if parsed.high <= np.inf else y",  # noqa: E501
    ),
    "The first part of a window may be compared with itself.": (
        "cpu/pool/max_pool.py _compute: for view in views[1:]:  ->  for view in views[0:]:",
    ),
    "Parameters of equal length cost the same, and others are not folded.": (
        "onnx/scaling.py Scaling._normalization: if not self.graph.budget.spend(parameters[0].size, parameters[0].size):  ->  if not self.graph.budget.spend(parameters[1].size, parameters[0].size):",  # noqa: E501
        "onnx/scaling.py Scaling._normalization: if not self.graph.budget.spend(parameters[0].size, parameters[0].size):  ->  if not self.graph.budget.spend(parameters[-1].size, parameters[0].size):",  # noqa: E501
        "onnx/scaling.py Scaling._normalization: if not self.graph.budget.spend(parameters[0].size, parameters[0].size):  ->  if not self.graph.budget.spend(parameters[0].size, parameters[1].size):",  # noqa: E501
        "onnx/scaling.py Scaling._normalization: if not self.graph.budget.spend(parameters[0].size, parameters[0].size):  ->  if not self.graph.budget.spend(parameters[0].size, parameters[-1].size):",  # noqa: E501
    ),
    "Any number other than one means the products of complex numbers.": (
        "cuda/passes/sums.py variants: yield add_up_variant(dtype, wide, rank, products=4)  ->  yield add_up_variant(dtype, wide, rank, products=5)",  # noqa: E501
        "cuda/passes/sums.py variants: yield add_up_variant(dtype, wide, rank, products=4)  ->  yield add_up_variant(dtype, wide, rank, products=3)",  # noqa: E501
    ),
    "The description of a kernel is for humans: any indentation is right.": (
        "cuda/build/cache.py store: description = json.dumps(_description(key, name, content, log), indent=1)  ->  description = json.dumps(_description(key, name, content, log), indent=2)",  # noqa: E501
        "cuda/build/cache.py store: description = json.dumps(_description(key, name, content, log), indent=1)  ->  description = json.dumps(_description(key, name, content, log), indent=0)",  # noqa: E501
    ),
    "Two entries, for images and channels, have the same order in both layouts.": (
        "rules/layout.py channels_second: if layout == 'NCHW' or len(entries) < 3:  ->  if layout == 'NCHW' or len(entries) < 2:",  # noqa: E501
    ),
    "Whole numbers divided by zero are undefined.": (
        "onnx/operators/elementwise.py divide: return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))  ->  return quotient + ((quotient * b != a) & ((a < 0) != (b <= 0)))",  # noqa: E501
    ),
    "Axes with equal strides have the same elements: any of them extends the run.": (
        "cuda/passes/channels_last.py _run: extent, begins[found[0]] = left.pop(found[0])  ->  extent, begins[found[0]] = left.pop(found[-1])",  # noqa: E501
    ),
    "A larger buffer than necessary; the rest is not read.": (
        "cpu/pool/_windows.py _reduce_by_doubling: length = (axis.count - 1) * axis.stride + (count - 1) * step + 1  ->  length = (axis.count - 1) * axis.stride + (count - 1) * step + 2",  # noqa: E501
        "cpu/_gather.py _piece: reach, begins = ((q - 1) * s + offsets[-1] - offsets[0] + 1, a * s + offsets[0])  ->  reach, begins = ((q + 1) * s + offsets[-1] - offsets[0] + 1, a * s + offsets[0])",  # noqa: E501
    ),
    "Divisors 0 and 1 mean the same.": (
        "cuda/passes/sums.py _add_up: fields = {'parts': parts, 'elements': elements, 'extent': filled(extents, rank, 1), 'y_stride': filled(steps, rank, 0)}  ->  fields = {'parts': parts, 'elements': elements, 'extent': filled(extents, rank, 0), 'y_stride': filled(steps, rank, 0)}",  # noqa: E501
    ),
    "Extents that the block does not divide are refused when the axes are split.": (
        "onnx/operators/shaping.py _space_to_depth: return parts.transpose(order).reshape(images, channels * block ** 2, height // block, width // block)  ->  return parts.transpose(order).reshape(images, channels * block ** 2, height // block, -(-width // block))",  # noqa: E501
        "onnx/operators/shaping.py _space_to_depth: return parts.transpose(order).reshape(images, channels * block ** 2, height // block, width // block)  ->  return parts.transpose(order).reshape(images, channels * block ** 2, -(-height // block), width // block)",  # noqa: E501
    ),
    "A part without elements has the lowest number, which exceeds no other.": (
        "cpu/pool/_argmax.py merge: better = more_indices >= 0  ->  better = more_indices >= -1",
    ),
    "A single thread may also be bound to the only processor.": (
        "cpu/_threads.py _Pool._places: own = threads == len(processors) > 1 and hasattr(os, 'sched_setaffinity')  ->  own = threads == len(processors) >= 1 and hasattr(os, 'sched_setaffinity')",  # noqa: E501
        "cpu/_threads.py _Pool._places: own = threads == len(processors) > 1 and hasattr(os, 'sched_setaffinity')  ->  own = threads == len(processors) > 0 and hasattr(os, 'sched_setaffinity')",  # noqa: E501
    ),
    "No system grants a quota of 0.": (
        "cpu/_threads.py _granted: return -(-quota // period) if quota > 0 and period > 0 else _UNBOUNDED  ->  return -(-quota // period) if quota >= 0 and period > 0 else _UNBOUNDED",  # noqa: E501
    ),
    "A waiting thread may do work that no thread has begun.": (
        "cpu/_threads.py _Pool.is_deserted: return self._is_started and (not any((thread.is_alive() for thread in self._threads)))  ->  return self._is_started or not any((thread.is_alive() for thread in self._threads))",  # noqa: E501
    ),
    "Neither 0 nor 1 needs 64 bits.": (
        "cuda/build/params.py needs_wide: largest = max(magnitudes, default=0)  ->  largest = max(magnitudes, default=1)",  # noqa: E501
    ),
    "Values of one axis have no channels, and no channels take a constant without elements: both are refused later.": (
        "onnx/scaling.py _per_channel: if constant.size != 1 and (rank < 2 or shape[1] != constant.size):  ->  if constant.size != 0 and (rank < 2 or shape[1] != constant.size):",  # noqa: E501
    ),
    "The number of rows finished at once changes no result.": (
        "cpu/_gather.py _GatheredProduct.compute: for low, high in spans(groups * rows, groups * rows if one_pass else _FINISHED // (images * piece.count)):  ->  for low, high in spans(groups * rows, groups * rows if one_pass else -(-_FINISHED // (images * piece.count))):",  # noqa: E501
    ),
    "Matrices have an order, which callers have checked.": (
        "cpu/_product.py add: (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, 0) for matrix in (a, b))  ->  (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (-1, 0) for matrix in (a, b))",  # noqa: E501
        "cpu/_product.py add: (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, 0) for matrix in (a, b))  ->  (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, -1) for matrix in (a, b))",  # noqa: E501
        "cpu/_product.py add: (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, 0) for matrix in (a, b))  ->  (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, 1) for matrix in (a, b))",  # noqa: E501
        "cpu/_product.py add: (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, 0) for matrix in (a, b))  ->  (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (1, 0) for matrix in (a, b))",  # noqa: E501
    ),
    "A window of one element has no dilation, and no plan reads the pads at the end.": (
        "cuda/pool/axis.py _singly: single = {'kernel_shape': 1, 'strides': 1, 'dilations': 1, 'pads_begin': 0, 'pads_end': 0}  ->  single = {'kernel_shape': 1, 'strides': 1, 'dilations': 2, 'pads_begin': 0, 'pads_end': 0}",  # noqa: E501
        "cuda/pool/axis.py _singly: single = {'kernel_shape': 1, 'strides': 1, 'dilations': 1, 'pads_begin': 0, 'pads_end': 0}  ->  single = {'kernel_shape': 1, 'strides': 1, 'dilations': 1, 'pads_begin': 0, 'pads_end': -1}",  # noqa: E501
    ),
    "The size of an element divides that of a vector.": (
        "cuda/pool/problem.py channels_of_vector: return 2 if problem.named else 16 // problem.itemsize  ->  return 2 if problem.named else -(-16 // problem.itemsize)",  # noqa: E501
    ),
    "No operator is older than opset 1.": (
        "onnx/nodes.py module: … nv_transpose, ('X', 'W', 'B'), 2, {'Y': 1}, {**_CONV, 'output_padding': (_INTS, 1 …  ->  … nv_transpose, ('X', 'W', 'B'), 2, {'Y': 0}, {**_CONV, 'output_padding': (_INTS, 1 …",  # noqa: E501
    ),
    "Strides of 1 or 0 both add no elements before the first.": (
        "cuda/conv/finish.py _space: before, after = (-sum((step for step in steps if step < 0)), 1 + sum((step for step in steps if step > 0)))  ->  before, after = (-sum((step for step in steps if step < 1)), 1 + sum((step for step in steps if step > 0)))",  # noqa: E501
    ),
    "The tests only run on machines with this byte order.": (
        "cpu/pool/_argmax.py _packed: low = halves[..., 0 if np.little_endian else 1::2]  ->  low = halves[..., 0 if np.little_endian else 0::2]",  # noqa: E501
    ),
    "A single number is both the first and the last.": (
        "cli/calls.py numbers: return values if ',' in text else values[0]  ->  return values if ',' in text else values[-1]",  # noqa: E501
    ),
    "The stride of an axis with one element or one tap is never used.": (
        *(
            "cuda/passes/sums.py for_channels: "
            "geometry, x_strides = (SumsGeometry((0, channels, 1), geometry.y_shape), (0, 0, 0))  ->  "
            "geometry, x_strides = (SumsGeometry((0, channels, 1), geometry.y_shape), "
            f"({image}, {channel}, {pixel}))"
            for image, channel, pixel in ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1))
        ),
    ),
    "The systems on which the tests run have the flag.": (
        "_files.py _without_waiting: return os.open(path, flags | getattr(os, 'O_NONBLOCK', 0))  ->  return os.open(path, flags | getattr(os, 'O_NONBLOCK', -1))",  # noqa: E501
    ),
    "A larger buffer than necessary, which is aligned, too.": (
        "cuda/call/tensor_map.py Encoder._encoded: room = ctypes.create_string_buffer(8 * WORDS + _ALIGNMENT)  ->  room = ctypes.create_string_buffer(9 * WORDS + _ALIGNMENT)",  # noqa: E501
    ),
    "One of eight consecutive numbers is a multiple of eight.": (
        "cuda/conv/wgmma/pixels.py _patch: return (high, next((size for size in range(wide, wide + 8) if size * high % 8 == 0)))  ->  return (high, next((size for size in range(wide, wide + 9) if size * high % 8 == 0)))",  # noqa: E501
    ),
    "A block that could be written in place is copied instead, with the same values.": (
        "cpu/_gather.py _GatheredProduct._target: if images > 1 and (not self.stacks):  ->  if images >= 1 and (not self.stacks):",  # noqa: E501
    ),
    "Rows are gathered tap by tap or by shifts, with the same result.": (
        *(
            "cpu/_gather.py _GatheredProduct._rows: if piece.shifts is not None and source.strides[-2:] == "
            "(source.shape[-1] * source.itemsize, source.itemsize):  ->  if piece.shifts is not None and "
            f"source.strides[{part}] == (source.shape[-1] * source.itemsize, source.itemsize):"
            for part in ("-1:", "-3:", ":-2", "2:")
        ),
        "cpu/_gather.py _piece: … e(shifts) if shifts and plane and (s == 1) and (q == n) and (seen == (0, n)) else …  ->  … e(shifts) if shifts and plane and (s == 0) and (q == n) and (seen == (0, n)) else …",  # noqa: E501
        "cpu/_gather.py _piece: … and (s == 1) and (q == n) and (seen == (0, n)) else None) …  ->  … and (s == 1) and (q == n) and (seen == (1, n)) else None) …",  # noqa: E501
        "cpu/_gather.py _piece: … and (s == 1) and (q == n) and (seen == (0, n)) else None) …  ->  … and (s == 1) and (q == n) and (seen == (-1, n)) else None) …",  # noqa: E501
    ),
    "A tap's products are read once, so sums may overwrite them or use separate memory.": (
        "cpu/_scatter.py _store: if steps[0].covers and len(steps) == 1:  ->  if steps[0].covers and len(steps) != 1:",
        "cpu/_scatter.py _store: if steps[0].covers and len(steps) == 1:  ->  if steps[0].covers and len(steps) == 2:",
        "cpu/_scatter.py _store: if steps[0].covers and len(steps) == 1:  ->  if steps[0].covers and len(steps) == 0:",
    ),
    "Planes of one element may be folded into rows or not, if their number equals the largest grid.": (
        "cuda/pool/problem.py PoolView.folded: if not flat or self.planes == 1 or self.planes * self.width.extent >= MOST_BLOCKS or (self.channel.place == 0):  ->  if not flat or self.planes == 1 or self.planes * self.width.extent > MOST_BLOCKS or (self.channel.place == 0):",  # noqa: E501
    ),
    "A tap of all outputs initializes the sums, or is added to zeros.": (
        *(
            "cpu/_scatter.py _step: covers = all((start <= 0 and start + size >= n for start, size, n in sizes))  ->  "
            f"covers = all(({inside} for start, size, n in sizes))"
            for inside in (
                "start < 0 and start + size >= n",
                "start <= -1 and start + size >= n",
                "start <= 0 and start + size > n",
            )
        ),
    ),
    "Arrays with different numbers of axes are not concatenated.": (
        "onnx/operators/shaping.py _concat: return namespace(arrays[0]).concatenate(arrays, axis=axis_of(1 if axis is None else axis, arrays[0].ndim))  ->  return namespace(arrays[0]).concatenate(arrays, axis=axis_of(1 if axis is None else axis, arrays[-1].ndim))",  # noqa: E501
        "onnx/operators/shaping.py _concat: return namespace(arrays[0]).concatenate(arrays, axis=axis_of(1 if axis is None else axis, arrays[0].ndim))  ->  return namespace(arrays[-1]).concatenate(arrays, axis=axis_of(1 if axis is None else axis, arrays[0].ndim))",  # noqa: E501
    ),
    "It is set before BLAS is limited to one thread, and read only while it is limited.": (
        "cpu/_blas.py _Hold.__init__: self._before = 1  ->  self._before = 2",
        "cpu/_blas.py _Hold.__init__: self._before = 1  ->  self._before = 0",
    ),
    "Elements of an output do not share memory, so no two of its axes have equal strides.": (
        "cuda/pool/unpool.py for_max_unpool: … g.y_shape[1] > 1 and all((abs(of_y[1]) < abs(step) for n, step in zip(g.y_shape[ …  ->  … g.y_shape[1] > 1 and all((abs(of_y[1]) <= abs(step) for n, step in zip(g.y_shape[ …",  # noqa: E501
    ),
    "Even numbers do not divide the one odd number between.": (),
    "Convolutions of so many axes go another way: the same sums.": (
        "cpu/_workspace.py module: MOST_AXES = 64  ->  MOST_AXES = 63",
    ),
    "The same kernels are packed in another order, with another file size.": (
        "cli/compile.py _pack: chosen = sorted(chosen, key=lambda pair: (pair[0].source, pair[0].name, pair[1]))  ->  chosen = sorted(chosen, key=lambda pair: (pair[0].source, pair[0].name, pair[0]))",  # noqa: E501
    ),
    "Strides of 0 add nothing.": (
        "cuda/conv/finish.py _space: before, after = (-sum((step for step in steps if step < 0)), 1 + sum((step for step in steps if step > 0)))  ->  before, after = (-sum((step for step in steps if step <= 0)), 1 + sum((step for step in steps if step > 0)))",  # noqa: E501
    ),
    "If both methods have the same cost, either lists the same taps.": (
        "rules/geometry.py taps_met: if len(offsets) <= count * limit:  ->  if len(offsets) < count * limit:",
        "cpu/pool/_windows.py Axis.taps: if len(self.offsets) > self.count * self.extent:  ->  if len(self.offsets) >= self.count * self.extent:",  # noqa: E501
    ),
    "A product that is just large enough may be folded or not: no digits are lost.": (
        "onnx/scaling.py _product: lost = (sizes < tiny) & (np.abs(numbers) >= tiny) & (factors != 0)  ->  lost = (sizes <= tiny) & (np.abs(numbers) >= tiny) & (factors != 0)",  # noqa: E501
    ),
    "Any negative position means no element.": ("cpu/pool/_argmax.py _carried: places.fill(-1)  ->  places.fill(-2)",),
    "No channel exists at a distance of the number of channels.": (
        "onnx/operators/normalizing.py _lrn: for offset in range(-min((size - 1) // 2, channels - 1), min(size // 2, channels - 1) + 1):  ->  for offset in range(-min((size - 1) // 2, channels - 1), min(size // 2, channels - 0) + 1):",  # noqa: E501
        "onnx/operators/normalizing.py _lrn: for offset in range(-min((size - 1) // 2, channels - 1), min(size // 2, channels - 1) + 1):  ->  for offset in range(-min((size - 1) // 2, channels - 0), min(size // 2, channels - 1) + 1):",  # noqa: E501
    ),
    "Neither zero nodes nor one exceed the limit.": (
        "onnx/checks/structure.py _Measure.check: count = max(self._of_nodes(nodes).nodes, *(self._of_function(key).nodes for key in self._bodies), 0)  ->  count = max(self._of_nodes(nodes).nodes, *(self._of_function(key).nodes for key in self._bodies), 1)",  # noqa: E501
        "onnx/checks/structure.py _Measure.check: count = max(self._of_nodes(nodes).nodes, *(self._of_function(key).nodes for key in self._bodies), 0)  ->  count = max(self._of_nodes(nodes).nodes, *(self._of_function(key).nodes for key in self._bodies), -1)",  # noqa: E501
    ),
    "NumPy's arrays are recognized on the fast path, or on that of other libraries.": (
        "_arrays.py resolve: if type(w) is kind and (b is None or type(b) is kind):  ->  if type(w) is kind and (b is None and type(b) is kind):",  # noqa: E501
    ),
    "Conv and ConvTranspose have one output.": (
        "cli/check_onnx.py compare: worst = max(worst, _within(\"y (against the cpu's)\", got[0], _run(test.model, test.inputs, 'cpu')[0], bound))  ->  worst = max(worst, _within(\"y (against the cpu's)\", got[-1], _run(test.model, test.inputs, 'cpu')[0], bound))",  # noqa: E501
    ),
    "Complex numbers have no order, so their lowest value is never used.": (
        "rules/dtypes.py module: … ', 'Complex<double>', 16, 'complex128', 0, False, 'float64'))} …  ->  … ', 'Complex<double>', 16, 'complex128', -1, False, 'float64'))} …",  # noqa: E501
        "rules/dtypes.py module: … ', 'Complex<double>', 16, 'complex128', 0, False, 'float64'))} …  ->  … ', 'Complex<double>', 16, 'complex128', 1, False, 'float64'))} …",  # noqa: E501
        "rules/dtypes.py module: … x64', 'Complex<float>', 8, 'complex64', 0, False, 'float32'), DType('complex128', …  ->  … x64', 'Complex<float>', 8, 'complex64', -1, False, 'float32'), DType('complex128', …",  # noqa: E501
        "rules/dtypes.py module: … x64', 'Complex<float>', 8, 'complex64', 0, False, 'float32'), DType('complex128', …  ->  … x64', 'Complex<float>', 8, 'complex64', 1, False, 'float32'), DType('complex128', …",  # noqa: E501
    ),
    "NumPy infers any negative extent, not only -1.": (
        "onnx/operators/normalizing.py _instance_normalization: per_channel = (-1, *(1,) * (x.ndim - 2))  ->  per_channel = (-2, *(1,) * (x.ndim - 2))",  # noqa: E501
    ),
    "Element sizes that divide 16 have the same quotient for the next number.": (
        "cuda/conv/gemm/stem_tile.py channels_are_vectors: vector, (batch, channel, *spatial) = (16 // problem.itemsize, problem.y_strides)  ->  vector, (batch, channel, *spatial) = (17 // problem.itemsize, problem.y_strides)",  # noqa: E501
    ),
    "Maps of boxes have no numbers of channels and pixels, so these are never read.": (
        "cuda/plan/launch.py TensorMap: channels: int = 0  ->  channels: int = 1",
        "cuda/plan/launch.py TensorMap: channels: int = 0  ->  channels: int = -1",
        "cuda/plan/launch.py TensorMap: pixels: int = 0  ->  pixels: int = 1",
        "cuda/plan/launch.py TensorMap: pixels: int = 0  ->  pixels: int = -1",
    ),
    "The size of an element divides that of a slice.": (
        "cuda/conv/gemm/matrix.py variant: block_k, scattered = (_SLICE // dtypes.entry(dtype).itemsize, form == 'depth_to_space')  ->  block_k, scattered = (-(-_SLICE // dtypes.entry(dtype).itemsize), form == 'depth_to_space')",  # noqa: E501
    ),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "Every tile that fits covers all outputs; the model chooses one.": (
        "cuda/conv/direct/bands_tile.py best",
        "cuda/conv/direct/bands_tile.py _teams",
        "cuda/conv/direct/bands_tile.py _counts",
        "cuda/conv/direct/channels.py best",
        "cuda/conv/direct/channels.py _blocks",
        "cuda/conv/direct/channels.py _shares",
        "cuda/conv/direct/rows.py best",
        "cuda/conv/direct/rows.py _shares",
        "cuda/conv/direct/rows.py _threads",
        "cuda/conv/direct/base.py even_shares",
        "cuda/conv/direct/rows.py _outputs_of_thread",
        "cuda/conv/gemm/grouped_tile.py best",
        "cuda/conv/gemm/grouped_tile.py _parts",
        "cuda/conv/gemm/grouped_tile.py _shapes",
        "cuda/pool/patches.py _best",
        "cuda/pool/patches.py _parts",
        "cuda/pool/tiles.py _row_tiles",
        "cuda/pool/tiles.py _best",
        "cuda/pool/tiles.py _tiles_of",
        "cuda/conv/wgmma/cost.py in_best_splits",
    ),
    "Costs that the model compares, in parts common to several tiles.": (
        "cuda/conv/gemm/grouped_tile.py GroupedTile.costs",
        "cuda/conv/gemm/grouped_tile.py GroupedTile.weights",
        "cuda/conv/gemm/grouped_tile.py GroupedWork.products",
        "cuda/conv/wgmma/cost.py _costs",
    ),
    "Sizes to try, and work per multiprocessor: all sizes that fit cover all outputs.": (
        "cuda/conv/direct/bands_tile.py module: _STEPS",
        "cuda/conv/direct/channels.py module: _OUTPUTS",
        "cuda/conv/direct/channels.py module: _VECTORS",
        "cuda/conv/direct/channels.py module: _WEIGHT_BYTES",
        "cuda/conv/direct/transpose.py module: _WALKS",
        "cuda/conv/direct/transpose.py module: _WANTED",
        "cuda/conv/direct/rows.py module: _RESIDENT",
        "cuda/conv/direct/rows.py module: _STEPS",
        "cuda/conv/gemm/grouped_tile.py module: _PARTS",
        "cuda/conv/gemm/grouped_tile.py module: _TRIED",
        "cuda/pool/channels.py module: _WALKS",
        "cuda/pool/grad/base.py module: _WALKS",
        "cuda/pool/grad/scatter.py module: _COLUMNS, _SLICES",
        "cuda/pool/grad/scatter.py module: _WALKS",
        "cuda/pool/patches.py module: _BYTES",
        "cuda/pool/tiles.py module: _BYTES",
        "cuda/pool/tiles.py module: _LEAST_COLUMNS",
        "cuda/conv/gemm/split.py module: _COUNTS",
        "cuda/conv/gemm/split.py module: _ROUNDS",
        "cuda/passes/sums.py module: _BLOCKS_PER_SM",
        "cuda/passes/sums.py module: _THREADS",
        "cuda/weight_grad/tiles.py module: _ROUNDS",
    ),
    "Any number of parts gives the same sums, and walks of any length cover all elements.": (
        "cuda/conv/direct/transpose.py _walk",
        "cuda/pool/grad/base.py WalkView.lengths",
        "cuda/conv/gemm/split.py divided",
        "cuda/weight_grad/tiles.py parts",
    ),
    "Blocks of any size give the same sums, within the workspace.": (
        "cpu/_gather.py _plan",
        "cpu/_scatter.py _plan",
        *(
            f"cpu/weight_grad.py _by_taps: {name}"
            for name in ("budget", "most", "rows, columns", "room", "box", "groups")
        ),
    ),
    "Blocks are described ahead or one by one.": (
        "cpu/_gather.py _work: few",
        "cpu/pool/_blocks.py partition: few",
    ),
    "The number of blocks for which the compiler limits registers.": (
        "cuda/conv/direct/few.py module: _BLOCKS_PER_SM",
        "cuda/pool/general.py _blocks_per_sm",
        "cuda/pool/grad/walks.py _blocks_per_sm",
        "cuda/pool/patches.py variant: blocks",
        "cuda/pool/tiles.py variant: blocks",
        "cuda/weight_grad/plain.py variant: blocks",
    ),
    "Block sizes, and thresholds between methods: both methods are right.": (
        "cpu/_gather.py _choose_algorithm",
        "cpu/_taps.py _run",
        "cpu/_blas.py module: _LONG, _QUIET",
        "cpu/_blas.py module: _SMALL",
        "cpu/_grouped.py _apart",
        "cpu/_grouped.py _has_good_rows",
        *(
            f"cpu/_grouped.py module: {name}"
            for name in (
                *("_TILE_BYTES", "_SOME_TAPS, _MANY_TAPS, _LONG_ROW", "_LONG_RUN", "_VECTOR", "_PAGE, _SET"),
                *("_FEW_CHANNELS", "_GATHERS_PER_PASS"),
            )
        ),
        *(
            f"cpu/_gather.py module: {name}"
            for name in (
                *("_DEEP", "_FEW", "_FINISHED", "_OFTEN", "_SEVERAL"),
                *("_SPARSE", "_TILE_BYTES", "_WIDE", "_WORTH_STARTING"),
            )
        ),
        "cpu/_threads.py module: _LOST",
        "cpu/_threads.py module: _WORTH_WAKING",
        "cpu/_threads.py pays",
        "cpu/_scatter.py _ScatteredProduct._multiply",
        "cpu/_scatter.py module: _TILE_BYTES",
        "cpu/_scatter.py module: _WIDE",
        "cpu/pool/_windows.py module: _SHORT_RUN, _SHORT_PLANE",
        "cpu/pool/_blocks.py module: _FEW",
        "cpu/pool/max_pool.py module: _TILE_BYTES",
        "cpu/weight_grad.py module: _TILE_ELEMENTS",
        "onnx/model.py module: _MOST_SEEN",
        "onnx/operators/affine.py module: _BLOCK",
        "onnx/operators/detecting.py module: _BOXES",
        "onnx/operators/detecting.py module: _GATHERED",
        "onnx/operators/detecting.py module: _LONG",
        "onnx/operators/integers.py module: _BLOCK",
        "onnx/operators/special.py module: BLOCK",
        "onnx/operators/special.py module: _PASSES",
        "onnx/operators/pooling.py module: _BLOCK",
        "onnx/operators/quantizing.py module: _BLOCK",
        "onnx/operators/sampling.py module: _BLOCK",
    ),
    "Only the model uses the number, through a variable.": (
        "cuda/conv/direct/bands.py _scattered_bytes",
        "cuda/conv/problem.py Problem.lines",
        "cuda/conv/gemm/grouped_tile.py module: _STEP, _PREPARED, _GATHERED, _COPIED, _WEIGHT",
        "cuda/pool/general.py offers: instructions",
        "cuda/pool/general.py module: _INSTRUCTIONS",
        "cuda/pool/vectors.py offers: loads",
        "cuda/pool/vectors.py offers: threads",
        "cuda/pool/vectors.py module: _INSTRUCTIONS",
        "cuda/pool/vectors.py module: _OF_BYTES",
    ),
    "Sums of phases as rows, or of added products, are as right as other methods.": (
        "cpu/_phase_rows.py _pays",
        "cpu/_phase_rows.py _steps",
        "cpu/_phase_rows.py _seconds",
        *(
            f"cpu/_phase_rows.py module: {name}"
            for name in ("_TILE_BYTES", "_WIDE", "_STEP", "_LOOP", "_MORE_STEPS", "_MARGIN")
        ),
        "cpu/_phase_rows.py module: _OPERATIONS, _ELEMENTS",
        "cpu/conv.py _adds_fewer",
        *(f"cpu/conv.py module: {name}" for name in ("_ONE_BLOCK", "_RUN", "_TERM")),
        "cpu/conv.py module: _GATHERED, _ADDED, _OPERATIONS",
    ),
    "Products row by row of taps are as right as those of gathered windows.": (
        "cpu/_gather.py _serves_rows",
        "cpu/_gather.py goes_by_rows",
        "cpu/conv.py _adds_less_than_it_gathers",
    ),
}

# Register limits, pipeline stages, and instruction counts of kernels; with their class if the name is ambiguous.
FIELDS = (
    "blocks_per_sm",
    *("BandForm.registers", "RowForm.registers"),
    *("MatrixTile.stages", "MmaForm.stages", "WeightGradTile.stages"),
    *("WalkForm.walk", "WalkForm.windows", "WalkForm.row", "WalkForm.part"),
)

SIZES = "The size of an element, word or vector divides that of a vector, line or slice."
# By module: the divisions, as Python unparses them. Element sizes of two bytes or more also divide the next number
# without changing the quotient; MaxPool's elements may have a single byte.
EXACT: dict[str, dict[str, tuple[str, ...]]] = {
    SIZES: {
        "cuda/conv/direct/bands.py": ("16 // problem.itemsize",),
        "cuda/conv/direct/bands_tile.py": (
            "_BANK_BYTES // self.word",
            "_BANK_BYTES // self.word // self.vector",
            "16 // self.word",
            "16 // dtypes.sums(view.dtype).itemsize",
        ),
        "cuda/passes/channels_last.py": ("_VECTOR // itemsize",),
        "cuda/conv/problem.py": ("16 // self.word",),
        "cuda/conv/direct/rows.py": (
            "128 // self.view.word",
            "128 // self.view.word // self.unit",
        ),
        "cuda/conv/gemm/fragments.py": ("size // problem.itemsize",),
        "cuda/conv/gemm/matrix.py": ("_CHUNK // problem.itemsize", "_SLICE // itemsize"),
        "cuda/conv/gemm/mma.py": ("form.copied // problem.itemsize",),
        "cuda/conv/gemm/mma_tile.py": (
            "self.copied // itemsize",
            "form.block_k * problem.itemsize // 32",
            "32 // problem.itemsize",
        ),
        "cuda/pool/problem.py": ("16 // problem.itemsize",),
        "cuda/pool/tiles.py": ("16 // size", "_BANKS // size", "16 // problem.itemsize"),
        "cuda/pool/vectors.py": ("16 // problem.itemsize",),
        "cuda/conv/gemm/stem_tile.py": (
            "16 // problem.itemsize",
            "4 // problem.itemsize",
            "4 // dtypes.entry(dtype).itemsize",
        ),
        "cuda/weight_grad/tiles.py": ("16 // problem.itemsize",),
        "cuda/conv/wgmma/sources.py": (
            "self.slice_bytes // self.problem.itemsize",
            "STEP_BYTES // problem.itemsize",
            "unit // self.problem.itemsize",
            "ALIGNMENT // self.problem.itemsize",
            "SLICE_BYTES // 2",
            "slots // 2",
        ),
    },
    "Tiles are made of whole fragments, of whole tiles of warps and threads, and of whole runs.": {
        "cuda/conv/direct/channels.py": ("_OUTPUTS // self.form[2]",),
        "cuda/conv/direct/rows.py": ("THREADS // 8", "self.threads[2] // self.phases[2]"),
        "cuda/conv/gemm/base.py": ("self.block_m // self.thread_m", "self.block_n // self.thread_n"),
        "cuda/conv/gemm/grouped_tile.py": ("self.depths * self.form.block_m // 16",),
        "cuda/conv/gemm/fragments.py": ("self.block_m // self.warp_m", "self.block_n // self.warp_n"),
        "cuda/conv/gemm/mma_tile.py": (
            "channels_of_tap(problem, form) // form.block_k",
            "problem.tiles(tile.block_m, tile.block_n)[0] * tile.block_m // 16",
        ),
        "cuda/conv/gemm/stem.py": (
            "kernel.slice_steps // WORDS",
            "numbers.whole(problem.filters, kernel.block_m) // 16",
        ),
        "cuda/conv/gemm/stem_tile.py": ("3 * block_m // 16", "4 // arithmetic.parts"),
        "cuda/weight_grad/tiles.py": ("tile.block_n // UNIT",),
        "cuda/conv/wgmma/pixels.py": ("tile.block_n // run",),
        "cuda/conv/wgmma/strips.py": ("tile.block_n // ROW", "tile.block_n // PATCH"),
    },
    "The dividend was rounded up to whole vectors before.": {
        "cuda/conv/direct/bands_tile.py": (
            "self.extent[1] // self.vector",
            "self.extent[0] * self.row_pitch // self.vector",
            "prod(self.positions) // self.vector",
        ),
        "cuda/conv/direct/rows.py": (
            "phase // unit",
            "rows * row // unit",
            "self.extent[0] * self.inner_pitches[2] // self.unit",
        ),
        "cuda/pool/tiles.py": ("whole_vectors(tile.lines.columns, vector) // vector",),
    },
    "The number of groups divides channels and filters; others are refused before.": {
        "cli/check_onnx.py": ("w_shape[0] // group",),
        "cuda/conv/problem.py": ("out_channels // g.group", "g.w_shape[0] // g.group"),
        "cuda/conv/gemm/grouped.py": ("problem.group // tile.work.joined_groups",),
        "cuda/conv/gemm/grouped_tile.py": ("self.problem.group // self.joined_groups",),
        "cuda/weight_grad/problem.py": ("self.geometry.w_shape[0] // self.geometry.group",),
        "cuda/conv/wgmma/sources.py": ("source.all_x_channels // problem.group",),
        "onnx/operators/normalizing.py": ("size // groups", "size // owners"),
        "onnx/operators/sampling.py": (
            "filters // shapes.group",
            "w.shape[0] // shapes.group",
            "x.shape[0] // shapes.group",
            "x.shape[0] // shapes.offset_group",
        ),
    },
    "A common divisor divides both, and other divisors are checked before.": {
        "cuda/conv/direct/rows.py": ("dilation // stride",),
        "cuda/conv/direct/channels.py": (
            "view.column_strides[2] // gcd(view.column_strides[2], view.dilations[2])",
            "d // gcd(s, d)",
            "self.view.column_strides[1] // gcd(self.view.column_strides[1], self.view.dilations[1])",
        ),
        "cuda/conv/problem.py": ("axis.stride // gcd(axis.stride, axis.dilation)",),
        "cuda/conv/gemm/base.py": ("axis.dilation // common", "axis.stride // common"),
        "cuda/conv/gemm/grouped_tile.py": ("axis.dilation // gcd(axis.stride, axis.dilation)",),
        "cuda/pool/runs.py": ("dilation // stride",),
        "cuda/pool/axis.py": ("axis.dilation // common", "axis.stride // common"),
        "cuda/conv/gemm/runs.py": ("taps // piece", "step // piece", "pad // piece"),
        "cuda/conv/wgmma/sources.py": ("stride // common", "dilation // common", "(place - tap * dilation) // stride"),
        "cuda/conv/wgmma/pixels.py": ("problem.taps[1] // inner_h", "problem.taps[2] // inner_w"),
        "cuda/conv/wgmma/strips.py": ("problem.taps[1] // inner",),
    },
    "A window with its gaps covers whole steps from its first tap to its last.": {
        "cuda/pool/problem.py": ("(self.reach - 1) // self.dilation",),
    },
}
