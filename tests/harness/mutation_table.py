"""The tests that judge the mutants of each Python module, for `mutate_python`: cheap ones that notice most, first.

Modules are named from the package's folder on; the first pattern that matches counts. Words after a file's name choose
those of its tests whose names have one of them, or none of those with a minus sign in front; without words, all tests
are meant that run no kernels, or such that do nothing. Emulated problems are cheap once their kernels are compiled.
A % in a word stands for a space. Left out are tests that need a compiler each time, or many seconds.
"""

from __future__ import annotations

_CLI = ("cli/test_main.py -standard_streams", "cli/test_run.py", "cli/test_files.py")
_PLAIN = "cuda/test_planner_rules.py without_saying"
_RULES, _LAYOUTS = "cuda/test_planner_rules.py", "cuda/test_tile_layouts.py"
_PLANS = ("cuda/conv/gemm/test_ffma.py", "cuda/plan/test_explain.py")
_POOL_PLANS = ("cuda/pool/test_families.py", "cuda/pool/test_rows.py")
_POOLED = "harness/test_many_blocks.py [max_pool"
_POOLS = ("rules/test_cases.py", "cpu/test_windows.py", "rules/test_extremes.py")
_SUMS = ("cpu/test_products.py", "rules/test_cases.py", "cuda/call/test_packed.py", "cuda/conv/test_fusion.py")
_GRADIENTS = ("cpu/test_gradients.py", "cpu/test_gradients_elsewhere.py", "cuda/test_complex.py")
_DASK = ("rules/test_host_rules.py blocks_ block_s_call", "dask/test_errors.py", "dask/test_dask.py")
_REWRITING = (
    "rules/test_host_rules.py which_constants paid_for opset_7",
    "onnx/test_folding.py",
    "onnx/test_curves.py",
    "onnx/test_costs.py",
    "onnx/test_functions.py",
    "onnx/test_untrusted.py small_models scaled_often constants_that memory_that",
    "onnx/test_joining.py",
    "onnx/test_repeated.py",
    "onnx/test_inputs.py",
    "onnx/test_exported.py",
    "onnx/test_runs.py",
)
_OPERATORS = (
    "rules/test_host_rules.py row_is_added factors_that activation_is is_broadcast is_repeated short_numbers",
    "onnx/test_operators.py",
    "onnx/test_curves.py",
    "onnx/test_forms.py",
    "onnx/test_costs.py",
    "onnx/test_untrusted.py windows_larger window_without_end device_s average_is",
    "onnx/test_functions.py",
    "onnx/test_node_tests.py",
    "onnx/test_folding.py",
    "onnx/test_exported.py",
    "onnx/test_on_device.py",
)
_RUNNER = (
    "onnx/test_control.py",
    "onnx/test_loading.py",
    "onnx/test_nodes.py",
    "onnx/test_runs.py",
    "onnx/test_inputs.py",
    "onnx/test_folding.py",
    "onnx/test_joining.py",
    "onnx/test_repeated.py",
    "onnx/test_reference.py",
    "onnx/test_on_device.py",
    "onnx/test_exported.py",
    "onnx/test_backend.py -these_are_all",
)
_WGMMA = (
    "cuda/conv/wgmma/test_family.py",
    "harness/test_many_wgmma.py [0-at%once-conv-float16-64x256] [0-at%once-conv_transpose-bfloat16-64x256_split] "
    "[conv-float16-128x256_rows] [conv-float32-64x256_patches] [conv-float32-64x256_pixel_rows]",
)
_STRUCTS = (
    "harness/test_many_blocks.py stem_float32_3d_32x256x3 few_float32 pointwise_float32_1d_128 "
    "conv_float32_3d_64x64x16_uniform_split depth_to_space_float32_3d_16 "
    "[conv_float32_4d_64x64x16_wide [conv_float16_3d_mma_16x128x32_scalar"
)
# Which kernels there are, and plans as they are written down.
_RECORDED = (
    "harness/test_specimen.py",
    "benchmarks/test_static.py planned_as_the_file",
)
_FAMILY = ("cuda/plan/test_borders.py", "cuda/conv/test_vectors.py", *_RECORDED)
_MMA = (
    "harness/test_many_blocks.py [conv_float16_3d_mma_16x128x [conv_bfloat16_3d_mma_64x64 [conv_transpose_float64_3d_mma "  # noqa: E501
    "rowwise [conv_float32_3d_tf32_64x64 3xtf32_64x64x16 [conv_transpose_bfloat16_3d_mma -interleaved -split"
)
_GEMMS = (
    "harness/test_many_blocks.py [conv_float32_ [conv_float16_3d_64x64x16- conv_float64_4d_64x64x16_uniform_wide "
    "[conv_transpose_float32_ [conv_transpose_float64_4d_64x64x16_wide"
)
_CALLS = (
    "cuda/call/test_errors.py",
    "cuda/call/test_interchange.py",
    "cuda/call/test_packed.py",
    "cuda/plan/test_explain.py",
    "cuda/plan/test_tune.py",
    "cuda/call/test_tensor_map.py",
    "cuda/conv/test_finish.py",
    "cuda/call/test_launch.py",
)
_COMPILER = (
    "cuda/build/test_compile.py",
    "cuda/build/test_architectures.py",
    "cuda/build/test_cache.py",
    "cuda/build/test_folders.py",
    "cuda/build/test_trust.py",
)

TESTS: dict[str, tuple[str, ...]] = {
    # ---- the package
    "__main__.py": ("cli/test_main.py",),
    "cli/__init__.py": ("test_package.py",),
    "rules/__init__.py": ("test_package.py",),
    "cuda/plan/strided.py": ("cuda/passes/test_sums.py", "cuda/pool/test_unpool.py"),
    "__init__.py": ("test_package.py",),
    "cli/calls.py": ("cli/test_calls.py",),
    "cli/main.py": (
        "cli/test_main.py",
        "cli/test_calls.py",
        "cli/test_run.py",
        "cli/test_files.py",
        "cli/test_compile.py",
        "cuda/build/test_pack.py info_names",
    ),
    "rules/activation.py": ("rules/test_errors.py", "cuda/conv/test_finish.py", "cuda/conv/test_fusion.py"),
    "_conv.py": (
        "rules/test_errors.py",
        "rules/test_layout.py",
        "rules/test_out.py",
        "cuda/conv/test_fusion.py alone_or_together",
        "rules/test_precision.py",
        "onnx/test_on_device.py",
        "cuda/call/test_packed.py",
    ),
    "_arrays.py": ("rules/test_errors.py", "cuda/call/test_interchange.py", "cuda/call/test_errors.py"),
    "cuda/call/bfloat16.py": ("cuda/call/test_interchange.py",),
    "cli/check*.py": (
        "rules/test_host_rules.py how_many_products",
        "cli/test_main.py -standard_streams",
        "cli/test_run.py",
    ),
    "cli/compare.py": ("cli/test_main.py -standard_streams",),
    "cli/compile.py": ("rules/test_host_rules.py packed_kernels", "cli/test_compile.py", "cuda/build/test_trust.py"),
    "rules/dtypes.py": (
        "rules/test_errors.py",
        "rules/test_extremes.py least_number numpy_s_size",
        "rules/test_cases.py bfloat16",
        "cuda/test_complex.py",
        "rules/test_precision.py",
        "cuda/plan/test_explain.py",
        "cuda/conv/gemm/test_ffma.py",
    ),
    "_environment.py": (
        "rules/test_host_rules.py a_variable",
        "rules/test_environment.py",
    ),
    "_errors.py": ("rules/test_host_rules.py are_listed", "rules/test_errors.py", "cuda/call/test_errors.py"),
    "_explain.py": (
        "cuda/plan/test_explain.py",
        "rules/test_errors.py to%explain",
        "cuda/conv/test_finish.py",
        "rules/test_layout.py",
    ),
    "rules/geometry.py": (
        "rules/test_host_rules.py taps_are_met",
        "rules/test_geometry_rules.py",
        "rules/test_errors.py",
        "rules/test_geometry.py",
        "rules/test_sizes.py",
        "oracle/test_peers.py",
    ),
    "_files.py": ("rules/test_host_rules.py another_kind", "onnx/test_untrusted.py", "cli/test_files.py"),
    "_call.py": (
        "rules/test_signatures.py onnx_s_defaults",
        "rules/test_gradient_errors.py",
        "rules/test_errors.py",
        "cuda/plan/test_explain.py",
        *_GRADIENTS,
        "compat/test_cudnn.py",
    ),
    "_gradients.py": (
        "rules/test_signatures.py onnx_s_defaults",
        "rules/test_gradient_errors.py",
        "rules/test_errors.py",
        "cuda/plan/test_explain.py",
        *_GRADIENTS,
        "compat/test_cudnn.py",
    ),
    "rules/gradients.py": (
        "rules/test_signatures.py onnx_s_defaults",
        "rules/test_gradient_errors.py",
        "rules/test_errors.py",
        "cuda/plan/test_explain.py",
        *_GRADIENTS,
        "compat/test_cudnn.py",
    ),
    "cli/inputs.py": ("cli/test_files.py", "cli/test_run.py", "cli/test_calls.py"),
    "rules/layout.py": ("rules/test_axis_order.py",),
    "rules/memory.py": (
        "rules/test_errors.py",
        "rules/test_out.py",
        "cuda/call/test_errors.py",
        "compat/test_cudnn.py",
    ),
    "rules/operators.py": (
        "cuda/plan/test_explain.py",
        "cuda/plan/test_tune.py",
        "rules/test_errors.py",
        "cuda/test_complex.py",
        "rules/test_precision.py",
    ),
    "cli/outputs.py": ("cli/test_files.py", "cli/test_run.py"),
    "_packed.py": ("cuda/call/test_packed.py", "rules/test_errors.py"),
    "rules/precision.py": ("rules/test_precision.py", "rules/test_errors.py", "cuda/plan/test_tune.py"),
    "cli/run.py": ("cli/test_run.py", "cli/test_files.py", "cli/test_calls.py"),
    "rules/signatures.py": ("rules/test_signatures.py", "rules/test_errors.py", "dask/test_errors.py"),
    "cli/terminal.py": ("rules/test_host_rules.py progress_is tables_and", *_CLI),
    "_transfer.py": (
        "cuda/call/test_packed.py",
        "rules/test_errors.py",
        "cuda/call/test_interchange.py",
        "onnx/test_on_device.py",
    ),
    "_trial.py": (
        "rules/test_host_rules.py smaller_factor are_apart",
        "cuda/plan/test_tune.py",
        "cuda/plan/test_tune.py is_left_out are_no_reason",
    ),
    "_tune.py": ("cuda/plan/test_tune.py", "cuda/call/test_tuned.py"),
    "rules/whole_numbers.py": (
        "rules/test_host_rules.py values_lie share_memory",
        "cuda/plan/test_tune.py",
        "cuda/plan/test_tune.py are_no_reason alike",
    ),
    "_turns.py": ("cpu/test_turns.py",),
    "_pooling.py": (
        "rules/test_signatures.py onnx_s_defaults",
        "rules/test_errors.py",
        "rules/test_layout.py",
        "rules/test_out.py",
        "rules/test_gradient_errors.py",
        "cpu/test_gradients.py",
        "cuda/plan/test_explain.py",
    ),
    "compat/*": ("compat/test_cudnn.py",),
    # ---- NumPy
    "cpu/_blas.py": ("cpu/test_threads.py",),
    "cpu/_threads.py": ("cpu/test_threads.py",),
    "cpu/unpool.py": (
        "rules/test_host_rules.py unpooling",
        "cpu/test_memory.py gradients",
        "rules/test_gradient_errors.py",
        "rules/test_errors.py index",
        *_GRADIENTS,
    ),
    "cpu/weight_grad.py": ("cpu/test_memory.py gradients", *_GRADIENTS, "compat/test_cudnn.py"),
    "cpu/_argmax.py": _POOLS,
    "cpu/_order.py": ("rules/test_host_rules.py keys_are", *_POOLS),
    "cpu/_windows.py": _POOLS,
    "cpu/max_pool.py": (
        "rules/test_host_rules.py cut_down",
        "cpu/test_workspace.py",
        *_POOLS,
        "cpu/test_memory.py pooling",
    ),
    "cpu/_workspace.py": ("cpu/test_workspace.py", "rules/test_cases.py", "cpu/test_products.py", "cpu/test_memory.py"),
    "cpu/_finish.py": (
        "rules/test_errors.py",
        "cpu/test_memory.py no_channels",
        "cuda/conv/test_fusion.py",
        "cpu/test_products.py",
    ),
    "cpu/_gather.py": (
        "rules/test_host_rules.py which_inputs",
        "cpu/test_workspace.py",
        *_SUMS,
        "cpu/test_memory.py test_a_convolution -taps",
    ),
    "cpu/_grouped.py": ("cpu/test_grouped.py", "rules/test_cases.py", "cpu/test_memory.py test_a_convolution"),
    "cpu/_scatter.py": (
        "cpu/test_workspace.py",
        "cpu/test_products.py taps_reach few_output",
        "rules/test_cases.py",
        "cuda/conv/test_fusion.py",
        "cuda/test_complex.py",
        "cpu/test_memory.py",
    ),
    "cpu/conv.py": (*_SUMS, "cuda/conv/test_fusion.py", "cuda/call/test_packed.py"),
    "cpu/_taps.py": (*_SUMS, "cpu/test_ranks.py", "cpu/test_memory.py not_finite"),
    "cpu/_product.py": ("rules/test_host_rules.py how_blas", *_SUMS),
    "cpu/*": _SUMS,
    # ---- Dask
    "dask/*": _DASK,
    # ---- ONNX
    "onnx/operators/control.py": ("onnx/test_control.py",),
    "onnx/operators/recurrent.py": ("onnx/test_recurrent.py", "onnx/test_costs.py", "onnx/test_node_tests.py"),
    "onnx/operators/resizing.py": ("onnx/test_sampling.py", *_OPERATORS),
    "onnx/operators/sampling.py": ("onnx/test_sampling.py", "onnx/test_costs.py", "onnx/test_node_tests.py"),
    "onnx/operators/*": _OPERATORS,
    "onnx/scaling.py": _REWRITING,
    "onnx/finishing.py": _REWRITING,
    "onnx/folding.py": _REWRITING,
    "onnx/joining.py": _REWRITING,
    "onnx/repeated.py": _REWRITING,
    "onnx/rewriting.py": _REWRITING,
    "onnx/files.py": ("onnx/test_untrusted.py", "onnx/test_loading.py"),
    "onnx/messages.py": ("onnx/test_untrusted.py", "onnx/test_loading.py"),
    "onnx/structure.py": ("onnx/test_untrusted.py", "onnx/test_loading.py"),
    "onnx/model.py": (
        "rules/test_host_rules.py first_version",
        *_RUNNER,
        "onnx/test_functions.py",
        "onnx/test_untrusted.py",
    ),
    "onnx/*": (*_RUNNER, "onnx/test_functions.py", "onnx/test_untrusted.py"),
    # ---- CUDA: planners
    "cuda/conv/direct/bands*.py": (
        _LAYOUTS,
        _PLAIN,
        "cuda/conv/direct/test_bands.py",
        *_PLANS,
        "harness/test_many_blocks.py conv_bands",
        *_FAMILY,
    ),
    "cuda/conv/wgmma/channels_last.py": (
        _RULES,
        "cuda/conv/wgmma/test_channels_last.py",
        "cuda/conv/wgmma/test_channels_last_kernel.py planes",
        "cuda/conv/wgmma/test_pack_rows.py test_",
        "cuda/conv/gemm/test_ffma.py",
    ),
    "cuda/conv/direct/channels*.py": (
        _LAYOUTS,
        _PLAIN,
        "cuda/conv/direct/test_channels.py",
        "harness/test_many_blocks.py channels_taps channels_4 channels_7",
        *_FAMILY,
    ),
    "cuda/complex.py": (
        _RULES,
        "cuda/test_variants.py",
        "cuda/test_complex.py",
        "cuda/plan/test_explain.py",
        "harness/test_many_gradients.py complex",
    ),
    "cuda/passes/copy.py": (
        "cuda/passes/test_copy.py",
        "cuda/test_variants.py",
        "cuda/conv/test_finish.py",
        "cpu/test_gradients_elsewhere.py",
        "harness/test_many_gradients.py copy",
    ),
    "cuda/conv/gemm/depth_to_space.py": (
        _RULES,
        "cuda/conv/gemm/test_transpose.py -every_candidate",
        *_PLANS,
        "cuda/conv/gemm/test_matrix.py -little -knows",
        "harness/test_many_blocks.py depth_to_space transpose_matrix",
        *_FAMILY,
    ),
    "cuda/conv/direct/transpose.py": (
        "cuda/conv/direct/test_transpose.py",
        _PLAIN,
        "harness/test_many_blocks.py transpose_depthwise",
        *_FAMILY,
    ),
    "cuda/conv/direct/base.py": (
        _RULES,
        _LAYOUTS,
        "cuda/conv/direct/test_rows.py",
        "harness/test_many_blocks.py [depthwise_ [grouped_float32 [grouped_float64 -channels",
        *_FAMILY,
    ),
    "cuda/conv/direct/rows*.py": (
        _RULES,
        _LAYOUTS,
        "cuda/conv/direct/test_rows.py",
        "harness/test_many_blocks.py [depthwise_ [grouped_float32 [grouped_float64 -channels",
        *_FAMILY,
    ),
    "cuda/conv/direct/few.py": (
        _RULES,
        "cuda/conv/direct/test_few.py",
        "cuda/conv/gemm/test_ffma.py",
        "harness/test_many_blocks.py conv_few",
        *_FAMILY,
    ),
    "cuda/conv/finish.py": ("cuda/conv/test_finish.py", "cuda/call/test_tensor_map.py"),
    "cuda/conv/gemm/grouped*.py": (
        _LAYOUTS,
        _PLAIN,
        "cuda/conv/gemm/test_grouped.py -main_loop",
        "harness/test_many_blocks.py conv_grouped_float16_3d_mma conv_grouped_float32_3d_tf32_16 conv_transpose_grouped",  # noqa: E501
        *_FAMILY,
    ),
    "cuda/conv/gemm/interleaved.py": (
        "cuda/test_tile_layouts.py whole_threads",
        _PLAIN,
        "cuda/conv/gemm/test_transpose.py -every_candidate",
        "cuda/conv/gemm/test_ffma.py",
        "harness/test_many_blocks.py interleaved_float32_3d_16 interleaved_float16_3d_64x64x16 interleaved_float64_3d_64",  # noqa: E501
        *_FAMILY,
    ),
    "cuda/conv/gemm/matrix.py": (
        "cuda/test_tile_layouts.py whole_fragments",
        _PLAIN,
        "cuda/conv/gemm/test_matrix.py -little -knows",
        "harness/test_many_blocks.py conv_matrix transpose_matrix",
        *_FAMILY,
    ),
    "cuda/conv/gemm/mma.py": (
        _RULES,
        "cuda/test_tile_layouts.py whole_fragments",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/conv/gemm/test_runs.py",
        "cuda/conv/gemm/test_split.py slices_of_a_tile",
        _MMA,
        "cuda/conv/gemm/test_mma.py chunks says_what beside",
        *_FAMILY,
    ),
    "cuda/build/pack.py": (
        "rules/test_host_rules.py everybody",
        "cuda/build/test_pack.py",
    ),
    "cuda/conv/gemm/pointwise.py": (
        _RULES,
        "cuda/test_tile_layouts.py whole_threads",
        "cuda/conv/gemm/test_pointwise.py",
        "cuda/conv/gemm/test_transpose.py -every_candidate",
        "harness/test_many_blocks.py pointwise depth_to_space",
        *_FAMILY,
    ),
    "cuda/pool/grad/*.py": (
        "cuda/test_variants.py",
        "cuda/pool/grad/test_families.py",
        "cuda/plan/test_explain.py",
        "harness/test_many_gradients.py pool walk",
        *_RECORDED,
    ),
    "cuda/pool/vectors.py": (
        *_POOL_PLANS,
        "harness/test_many_blocks.py 3d_vectors",
        *_FAMILY,
    ),
    "cuda/pool/channels.py": (
        *_POOL_PLANS,
        "harness/test_many_blocks.py [max_pool_float32_3d_channels [max_pool_float16_3d_channels "
        "[max_pool_int8_3d_channels [max_pool_float64_3d_channels",
        *_FAMILY,
    ),
    "cuda/pool/patches.py": (
        _RULES,
        *_POOL_PLANS,
        "harness/test_many_blocks.py 3d_patches",
        *_FAMILY,
    ),
    "cuda/pool/runs.py": (
        _LAYOUTS,
        *_POOL_PLANS,
        "harness/test_many_blocks.py 3d_tiles 3d_patches",
        *_FAMILY,
    ),
    "cuda/pool/tiles.py": (
        _LAYOUTS,
        "cuda/pool/test_problem.py",
        *_POOL_PLANS,
        "harness/test_many_blocks.py 3d_tiles",
        *_FAMILY,
    ),
    "cuda/pool/problem.py": (
        _RULES,
        "cuda/pool/test_problem.py",
        *_POOL_PLANS,
        "cuda/plan/test_explain.py",
        _POOLED,
        *_FAMILY,
    ),
    "cuda/pool/[!u]*.py": (*_POOL_PLANS, "cuda/plan/test_explain.py", _POOLED, *_FAMILY),
    "cuda/conv/gemm/runs.py": (
        _RULES,
        "cuda/conv/gemm/test_runs.py",
        "cuda/conv/gemm/test_matrix.py -little -knows",
        "harness/test_many_blocks.py rowwise",
        *_FAMILY,
    ),
    "cuda/conv/gemm/split.py": (
        "cuda/conv/gemm/test_split.py",
        "cuda/conv/gemm/test_ffma.py",
        "harness/test_many_blocks.py float32_3d_64x64x16_uniform_split conv_float64_3d_mma_64x64x16_scalar_split",
        *_FAMILY,
    ),
    "cuda/conv/gemm/stem*.py": (
        _RULES,
        "cuda/conv/gemm/test_stem.py",
        "cuda/conv/gemm/test_ffma.py",
        "harness/test_many_blocks.py conv_stem -bfloat16",
        *_FAMILY,
    ),
    "cuda/passes/sums.py": (
        "cuda/passes/test_sums.py",
        "cuda/test_variants.py",
        "cuda/plan/test_explain.py",
        "cuda/plan/test_tune.py",
        "harness/test_many_gradients.py sums",
        *_RECORDED,
    ),
    "cuda/call/tensor_map.py": ("cuda/call/test_tensor_map.py", "harness/test_many_wgmma.py [0-at strips"),
    "cuda/pool/unpool.py": (
        "cuda/pool/test_unpool.py",
        "cuda/test_variants.py",
        "cuda/plan/test_explain.py",
        "harness/test_many_gradients.py unpool check",
        *_RECORDED,
    ),
    "cuda/weight_grad/tiles*.py": (
        "cuda/test_tile_layouts.py whole_fragments which_pixels filled_up",
        "cuda/test_variants.py",
        "cuda/weight_grad/test_families.py -knows",
        "cuda/plan/test_explain.py",
        "harness/test_many_gradients.py tile-",
        *_RECORDED,
    ),
    "cuda/weight_grad/*.py": (
        "cuda/test_variants.py",
        "cuda/weight_grad/test_families.py -knows",
        "cuda/plan/test_explain.py",
        "harness/test_many_gradients.py weights",
        *_RECORDED,
    ),
    "cuda/conv/wgmma/*.py": (_RULES, *_WGMMA, *_FAMILY),
    "cuda/build/structs.py": ("cuda/build/test_structs.py", _STRUCTS),
    "cuda/conv/gemm/base.py": (
        "cuda/test_tile_layouts.py whole_threads one_tap",
        "cuda/conv/test_problem.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/conv/gemm/test_split.py",
        _GEMMS,
        *_FAMILY,
    ),
    "cuda/conv/gemm/ffma.py": (
        "cuda/conv/test_problem.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/conv/gemm/test_split.py",
        _GEMMS,
        *_FAMILY,
    ),
    "cuda/conv/families.py": (
        *_PLANS,
        "cuda/plan/test_tune.py",
        "rules/test_precision.py",
        "cuda/conv/gemm/test_stem.py",
        *_FAMILY,
    ),
    "cuda/conv/problem.py": (
        "cuda/conv/test_problem.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/plan/test_explain.py",
        "cuda/conv/gemm/test_stem.py",
        "cuda/conv/gemm/test_runs.py",
        _GEMMS,
        *_FAMILY,
    ),
    "cuda/conv/gemm/fragments.py": (
        "cuda/conv/gemm/test_ffma.py",
        "cuda/conv/gemm/test_runs.py",
        _MMA,
        *_FAMILY,
    ),
    "cuda/build/params.py": (
        "cuda/build/test_params.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/conv/gemm/test_stem.py",
        "cuda/pool/test_families.py",
        "cuda/call/test_errors.py",
    ),
    "cuda/plan/numbers.py": (
        _LAYOUTS,
        "cuda/conv/direct/test_bands.py",
        "cuda/conv/direct/test_rows.py",
        "cuda/conv/gemm/test_ffma.py",
    ),
    # ---- CUDA: devices
    "cuda/build/cache.py": ("cuda/build/test_folders.py", "cuda/build/test_cache.py", "cuda/build/test_trust.py"),
    "cuda/build/trust.py": ("cuda/build/test_trust.py", "cuda/build/test_cache.py"),
    "cuda/build/compile.py": (*_COMPILER, "cuda/call/test_errors.py", "cli/test_compile.py"),
    "cuda/build/nvrtc.py": (*_COMPILER, "cli/test_compile.py"),
    "cuda/build/sources.py": ("cuda/build/test_sources.py", *_COMPILER),
    "cuda/build/kernel_files.py": ("cuda/build/test_sources.py", "cuda/build/test_structs.py"),
    "cuda/build/variant.py": ("cuda/build/test_variant.py", "cuda/test_variants.py"),
    "cuda/plan/measured_rates.py": ("benchmarks/test_learn.py",),
    "cuda/plan/offers.py": ("cuda/plan/test_tune.py", "cuda/call/test_tuned.py", *_PLANS),
    "cuda/plan/floor.py": ("cuda/plan/test_limits.py", "cuda/plan/test_explain.py", "rules/test_precision.py"),
    "cuda/plan/limits.py": (
        _RULES,
        "benchmarks/test_learn.py",
        "cuda/plan/test_limits.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/plan/test_explain.py",
        "cuda/pool/test_families.py",
        "cuda/plan/test_tune.py",
    ),
    "cuda/planning.py": (
        "cuda/plan/test_explain.py",
        "cuda/plan/test_tune.py",
        "cuda/call/test_launch.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/call/test_ranks.py",
        "cuda/conv/wgmma/test_family.py lie_last",
    ),
    "cuda/plan/launch.py": (
        "cuda/plan/test_borders.py",
        "cuda/plan/test_explain.py",
        "cuda/test_complex.py",
        "cuda/plan/test_tune.py",
        "cuda/call/test_launch.py",
        "cuda/conv/gemm/test_ffma.py",
        "cuda/call/test_ranks.py parameters",
        "cuda/conv/wgmma/test_family.py lie_last",
    ),
    "cuda/call/tuned.py": ("cuda/call/test_tuned.py", "cuda/plan/test_tune.py"),
    "cuda/variants.py": ("cuda/test_variants.py", "cuda/conv/gemm/test_ffma.py", "cuda/build/test_sources.py"),
    "cuda/call/interchange.py": ("cuda/call/test_interchange.py",),
    "cuda/call/prepared.py": (
        "cuda/call/test_errors.py",
        "cuda/call/test_packed.py",
        "cuda/call/test_interchange.py",
        "cuda/call/test_tensor_map.py",
        "cuda/conv/test_finish.py",
        "cuda/conv/test_finish.py residuals_are_found complex_residuals",
        "cuda/call/test_launch.py",
        "cuda/call/test_launch.py axes_of_one",
    ),
    "cuda/call/device.py": (
        "rules/test_host_rules.py fill_the_cache",
        "gpu/test_interchange.py round_trip nothing_move",
        "gpu/test_memory.py does_not_fit",
        *_CALLS,
    ),
    "cuda/*": _CALLS,
}
