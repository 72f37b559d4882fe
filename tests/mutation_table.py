"""The tests that judge the mutants of each Python module, for `mutate_python`: cheap ones that notice most, first.

Modules are named from the package's folder on; the first pattern that matches counts. Words after a file's name choose
those of its tests whose names have one of them, or none of those with a minus sign in front; without words, all tests
are meant that need no emulator. Emulated problems are cheap once their kernels are compiled. A % in a word stands for a
space. Left out are tests that need a compiler each time, or many seconds.
"""

from __future__ import annotations

_CLI = ("test_cli.py -standard_streams", "test_cli_run.py", "test_cli_files.py")
_RULES, _LAYOUTS = "test_planner_rules.py", "test_tile_layouts.py"
_PLANS = ("test_gemm_plan.py", "test_explain.py")
_POOL_PLANS = ("test_pool_plan.py", "test_pool_rows_plan.py")
_POOLED = "test_many_blocks.py [max_pool"
_POOLS = ("test_cases.py", "test_cpu_windows.py", "test_extremes.py")
_SUMS = ("test_cpu_products.py", "test_cases.py", "test_packed.py", "test_fusion.py")
_GRADIENTS = ("test_gradients.py", "test_gradients_elsewhere.py", "test_complex.py")
_DASK = ("test_host_rules.py blocks_ block_s_call", "test_dask_errors.py", "test_dask.py")
_REWRITING = (
    "test_host_rules.py which_constants paid_for opset_7",
    "test_onnx_folding.py",
    "test_onnx_costs.py",
    "test_onnx_functions.py",
    "test_onnx_untrusted.py small_models scaled_often constants_that memory_that",
    "test_onnx_joining.py",
    "test_onnx_repeated.py",
    "test_onnx_inputs.py",
    "test_onnx_exported.py",
    "test_onnx_runs.py",
)
_OPERATORS = (
    "test_host_rules.py row_is_added factors_that activation_is is_broadcast is_repeated short_numbers",
    "test_onnx_operators.py",
    "test_onnx_forms.py",
    "test_onnx_costs.py",
    "test_onnx_untrusted.py windows_larger window_without_end device_s average_is",
    "test_onnx_functions.py",
    "test_onnx_node_tests.py",
    "test_onnx_folding.py",
    "test_onnx_exported.py",
    "test_onnx_on_device.py",
)
_RUNNER = (
    "test_onnx_loading.py",
    "test_onnx_nodes.py",
    "test_onnx_runs.py",
    "test_onnx_inputs.py",
    "test_onnx_folding.py",
    "test_onnx_joining.py",
    "test_onnx_repeated.py",
    "test_onnx_reference.py",
    "test_onnx_on_device.py",
    "test_onnx_exported.py",
    "test_onnx_backend.py -these_are_all",
)
_WGMMA = (
    "test_wgmma_plan.py -what_strips_hold -come_to_registers -backwards",
    "test_many_wgmma.py [0-at%once-conv-float16-64x256] [0-at%once-conv_transpose-bfloat16-64x256_split] "
    "[conv-float16-128x256_rows] [conv-float32-64x256_patches] [conv-float32-64x256_pixel_rows]",
)
_STRUCTS = (
    "test_many_blocks.py stem_float32_3d_32x256x3 few_float32 pointwise_float32_1d_128 "
    "conv_float32_3d_64x64x16_uniform_split depth_to_space_float32_3d_16 "
    "[conv_float32_4d_64x64x16_wide [conv_float16_3d_mma_16x128x32_scalar"
)
# Kernels, grids, and shared and static memory as they are written down.
_RECORDED = (
    "test_kernel_table.py row_for_every_kernel nothing_in_the_table",
    "test_benchmarks_static.py planned_as_the_file",
)
_FAMILY = ("test_plan_borders.py", "test_vector_plan.py", *_RECORDED)
_MMA = (
    "test_many_blocks.py [conv_float16_3d_mma_16x128x [conv_bfloat16_3d_mma_64x64 [conv_transpose_float64_3d_mma "
    "rowwise [conv_float32_3d_tf32_64x64 3xtf32_64x64x16 [conv_transpose_bfloat16_3d_mma -interleaved -split"
)
_GEMMS = (
    "test_many_blocks.py [conv_float32_ [conv_float16_3d_64x64x16- conv_float64_4d_64x64x16_uniform_wide "
    "[conv_transpose_float32_ [conv_transpose_float64_4d_64x64x16_wide"
)
_CALLS = (
    "test_cuda_errors.py",
    "test_cuda_interchange.py",
    "test_packed.py",
    "test_explain.py",
    "test_tune.py",
    "test_tensor_map.py",
    "test_finish_plan.py",
    "test_cuda_launch.py -axes_of_one",
)
_COMPILER = (
    "test_compile.py",
    "test_compile_architectures.py",
    "test_compile_cache.py",
    "test_compile_folders.py",
    "test_trust.py",
)

TESTS: dict[str, tuple[str, ...]] = {
    # ---- the package
    "__init__.py": ("test_package.py",),
    "_calls_command.py": ("test_cli_calls.py",),
    "__main__.py": ("test_cli.py", "test_cli_calls.py", "test_cli_run.py", "test_cli_files.py", "test_cli_compile.py"),
    "_activation.py": ("test_errors.py", "test_finish_plan.py", "test_fusion.py"),
    "_api.py": (
        "test_errors.py",
        "test_layout.py",
        "test_out.py",
        "test_fusion.py alone_or_together",
        "test_precision.py",
        "test_onnx_on_device.py",
        "test_packed.py",
    ),
    "_arrays.py": ("test_errors.py", "test_cuda_interchange.py", "test_cuda_errors.py"),
    "_bfloat16.py": ("test_cuda_interchange.py",),
    "_check*.py": ("test_host_rules.py how_many_products", "test_cli.py -standard_streams", "test_cli_run.py"),
    "_compile.py": ("test_host_rules.py packed_kernels", "test_cli_compile.py", "test_trust.py"),
    "_dtypes.py": (
        "test_errors.py",
        "test_extremes.py least_number numpy_s_size",
        "test_cases.py bfloat16",
        "test_complex.py",
        "test_precision.py",
        "test_explain.py",
        "test_gemm_plan.py",
    ),
    "_environment.py": (
        "test_host_rules.py a_variable",
        "test_environment.py",
    ),
    "_errors.py": ("test_errors.py", "test_cuda_errors.py"),
    "_explain.py": ("test_explain.py", "test_errors.py to%explain", "test_finish_plan.py", "test_layout.py"),
    "_geometry.py": (
        "test_host_rules.py taps_are_met",
        "test_geometry_rules.py",
        "test_errors.py",
        "test_geometry.py",
        "test_sizes.py",
        "test_peers.py",
    ),
    "_files.py": ("test_host_rules.py another_kind", "test_onnx_untrusted.py", "test_cli_files.py"),
    "_gradient*.py": (
        "test_signatures.py onnx_s_defaults",
        "test_gradient_errors.py",
        "test_errors.py",
        "test_explain.py",
        *_GRADIENTS,
        "test_compat.py",
    ),
    "_inputs.py": ("test_cli_files.py", "test_cli_run.py", "test_cli_calls.py"),
    "_layout.py": ("test_axis_order.py",),
    "_memory.py": ("test_errors.py", "test_out.py", "test_cuda_errors.py", "test_compat.py"),
    "_operators.py": ("test_explain.py", "test_tune.py", "test_errors.py", "test_complex.py", "test_precision.py"),
    "_outputs.py": ("test_cli_files.py", "test_cli_run.py"),
    "_packed.py": ("test_packed.py", "test_errors.py"),
    "_precision.py": ("test_precision.py", "test_errors.py", "test_tune.py"),
    "_run.py": ("test_cli_run.py", "test_cli_files.py", "test_cli_calls.py"),
    "_signatures.py": ("test_signatures.py", "test_errors.py", "test_dask_errors.py"),
    "_terminal.py": ("test_host_rules.py progress_is tables_and", *_CLI),
    "_transfer.py": ("test_packed.py", "test_errors.py", "test_cuda_interchange.py", "test_onnx_on_device.py"),
    "_trial.py": ("test_host_rules.py smaller_factor", "test_tune.py", "test_tune.py is_left_out are_no_reason"),
    "_tune.py": ("test_tune.py", "test_tuned.py"),
    "_whole_numbers.py": (
        "test_host_rules.py values_lie share_memory",
        "test_tune.py",
        "test_tune.py are_no_reason alike",
    ),
    "_turns.py": ("test_turns.py",),
    "_unpool_api.py": (
        "test_signatures.py onnx_s_defaults",
        "test_errors.py",
        "test_gradient_errors.py",
        "test_gradients.py",
        "test_explain.py",
    ),
    "compat/*": ("test_compat.py",),
    # ---- NumPy
    "cpu/_blas.py": ("test_threads.py",),
    "cpu/_threads.py": ("test_threads.py",),
    "cpu/unpool.py": (
        "test_host_rules.py unpooling",
        "test_memory.py gradients",
        "test_gradient_errors.py",
        "test_errors.py index",
        *_GRADIENTS,
    ),
    "cpu/weight_grad.py": ("test_memory.py gradients", *_GRADIENTS, "test_compat.py"),
    "cpu/_argmax.py": _POOLS,
    "cpu/_order.py": ("test_host_rules.py keys_are", *_POOLS),
    "cpu/_windows.py": _POOLS,
    "cpu/max_pool.py": ("test_host_rules.py cut_down", "test_workspace.py", *_POOLS, "test_memory.py pooling"),
    "cpu/_workspace.py": ("test_workspace.py", "test_cases.py", "test_cpu_products.py", "test_memory.py"),
    "cpu/_finish.py": ("test_errors.py", "test_memory.py no_channels", "test_fusion.py", "test_cpu_products.py"),
    "cpu/_gather.py": (
        "test_host_rules.py which_inputs",
        "test_workspace.py",
        *_SUMS,
        "test_memory.py test_a_convolution -taps",
    ),
    "cpu/_scatter.py": (
        "test_workspace.py",
        "test_cpu_products.py taps_reach few_output",
        "test_cases.py",
        "test_fusion.py",
        "test_complex.py",
        "test_memory.py",
    ),
    "cpu/conv_transpose.py": ("test_cases.py", "test_fusion.py", "test_packed.py"),
    "cpu/_taps.py": (*_SUMS, "test_ranks.py", "test_memory.py not_finite"),
    "cpu/_product.py": ("test_host_rules.py how_blas", *_SUMS),
    "cpu/*": _SUMS,
    # ---- Dask
    "dask/*": _DASK,
    # ---- ONNX
    "onnx/operators/*": _OPERATORS,
    "onnx/scaling.py": _REWRITING,
    "onnx/finishing.py": _REWRITING,
    "onnx/folding.py": _REWRITING,
    "onnx/joining.py": _REWRITING,
    "onnx/repeated.py": _REWRITING,
    "onnx/rewriting.py": _REWRITING,
    "onnx/files.py": ("test_onnx_untrusted.py", "test_onnx_loading.py"),
    "onnx/messages.py": ("test_onnx_untrusted.py", "test_onnx_loading.py"),
    "onnx/structure.py": ("test_onnx_untrusted.py", "test_onnx_loading.py"),
    "onnx/model.py": ("test_host_rules.py first_version", *_RUNNER, "test_onnx_functions.py", "test_onnx_untrusted.py"),
    "onnx/*": (*_RUNNER, "test_onnx_functions.py", "test_onnx_untrusted.py"),
    # ---- CUDA: planners
    "cuda/bands_*.py": (
        _LAYOUTS,
        "test_bands_plan.py",
        *_PLANS,
        "test_many_blocks.py conv_bands",
        *_FAMILY,
    ),
    "cuda/channels_last_plan.py": (
        _RULES,
        "test_channels_last_plan.py",
        "test_channels_last.py planes",
        "test_pack_rows.py test_",
        "test_gemm_plan.py",
    ),
    "cuda/channels_*.py": (
        _LAYOUTS,
        "test_channels_plan.py",
        "test_many_blocks.py channels_taps channels_4 channels_7",
        *_FAMILY,
    ),
    "cuda/complex_plan.py": (
        _RULES,
        "test_variants.py",
        "test_complex.py",
        "test_explain.py",
        "test_many_gradients.py complex",
    ),
    "cuda/copy_plan.py": (
        "test_variants.py",
        "test_finish_plan.py",
        "test_gradients_elsewhere.py",
        "test_many_gradients.py copy",
    ),
    "cuda/depth_to_space_matrix_plan.py": (
        "test_transpose_matrix_plan.py -knows",
        "test_gemm_plan.py",
        "test_many_blocks.py transpose_matrix",
        *_FAMILY,
    ),
    "cuda/depth_to_space_plan.py": (
        _RULES,
        "test_transpose_plan.py -every_candidate",
        *_PLANS,
        "test_many_blocks.py depth_to_space",
        *_FAMILY,
    ),
    "cuda/depthwise_transpose_plan.py": (
        "test_depthwise_transpose_plan.py",
        "test_many_blocks.py transpose_depthwise",
        *_FAMILY,
    ),
    "cuda/direct_*.py": (
        _RULES,
        _LAYOUTS,
        "test_direct_plan.py",
        "test_many_blocks.py [depthwise_ [grouped_float32 [grouped_float64 -channels",
        *_FAMILY,
    ),
    "cuda/few_plan.py": (
        _RULES,
        "test_few_plan.py",
        "test_gemm_plan.py",
        "test_many_blocks.py conv_few",
        *_FAMILY,
    ),
    "cuda/finish_plan.py": ("test_finish_plan.py", "test_tensor_map.py"),
    "cuda/grouped_*.py": (
        _LAYOUTS,
        "test_grouped_plan.py -main_loop",
        "test_many_blocks.py conv_grouped_float16_3d_mma conv_grouped_float32_3d_tf32_16 conv_transpose_grouped",
        *_FAMILY,
    ),
    "cuda/interleaved_plan.py": (
        "test_transpose_plan.py -every_candidate",
        "test_gemm_plan.py",
        "test_many_blocks.py interleaved_float32_3d_16 interleaved_float16_3d_64x64x16 interleaved_float64_3d_64",
        *_FAMILY,
    ),
    "cuda/matrix_plan.py": (
        "test_tile_layouts.py whole_fragments",
        "test_matrix_plan.py -little -knows",
        "test_many_blocks.py conv_matrix",
        *_FAMILY,
    ),
    "cuda/mma_*.py": (
        _RULES,
        "test_tile_layouts.py whole_fragments",
        "test_gemm_plan.py",
        "test_runs.py",
        "test_split_plan.py slices_of_a_tile",
        _MMA,
        "test_mma.py chunks says_what beside",
        *_FAMILY,
    ),
    "cuda/pack.py": (
        "test_host_rules.py everybody",
        "test_compile_pack.py",
    ),
    "cuda/pack_rows_plan.py": ("test_pack_rows.py test_",),
    "cuda/pointwise_plan.py": (_RULES, "test_pointwise_plan.py", "test_many_blocks.py pointwise", *_FAMILY),
    "cuda/pool_grad_*.py": (
        "test_variants.py",
        "test_pool_grad_plan.py",
        "test_explain.py",
        "test_many_gradients.py pool walk",
        *_RECORDED,
    ),
    "cuda/pool_vectors.py": (
        *_POOL_PLANS,
        "test_many_blocks.py 3d_vectors",
        *_FAMILY,
    ),
    "cuda/pool_tiles.py": (*_POOL_PLANS, "test_many_blocks.py 3d_tiles", *_FAMILY),
    "cuda/pool_channels.py": (
        *_POOL_PLANS,
        "test_many_blocks.py [max_pool_float32_3d_channels [max_pool_float16_3d_channels "
        "[max_pool_int8_3d_channels [max_pool_float64_3d_channels",
        *_FAMILY,
    ),
    "cuda/pool_patches.py": (
        _RULES,
        *_POOL_PLANS,
        "test_many_blocks.py 3d_patches",
        *_FAMILY,
    ),
    "cuda/pool_layout.py": (_LAYOUTS, "test_pool_problem.py", *_POOL_PLANS, "test_many_blocks.py 3d_tiles", *_FAMILY),
    "cuda/pool_problem.py": (_RULES, "test_pool_problem.py", *_POOL_PLANS, "test_explain.py", _POOLED, *_FAMILY),
    "cuda/pool_*.py": (*_POOL_PLANS, "test_explain.py", _POOLED, *_FAMILY),
    "cuda/runs.py": (
        _RULES,
        "test_runs.py",
        "test_matrix_plan.py -little -knows",
        "test_many_blocks.py rowwise",
        *_FAMILY,
    ),
    "cuda/split_plan.py": (
        "test_split_plan.py",
        "test_gemm_plan.py",
        "test_many_blocks.py float32_3d_64x64x16_uniform_split conv_float64_3d_mma_64x64x16_scalar_split",
        *_FAMILY,
    ),
    "cuda/stem_*.py": (
        _RULES,
        "test_stem_plan.py",
        "test_gemm_plan.py",
        "test_many_blocks.py conv_stem -bfloat16",
        *_FAMILY,
    ),
    "cuda/sums_plan.py": (
        "test_sums_plan.py",
        "test_variants.py",
        "test_explain.py",
        "test_tune.py",
        "test_many_gradients.py sums",
        *_RECORDED,
    ),
    "cuda/tensor_map.py": ("test_tensor_map.py", "test_many_wgmma.py [0-at strips"),
    "cuda/unpool_plan.py": (
        "test_unpool_plan.py",
        "test_variants.py",
        "test_explain.py",
        "test_many_gradients.py unpool check",
        *_RECORDED,
    ),
    "cuda/weight_grad_tile*.py": (
        "test_tile_layouts.py whole_fragments which_pixels filled_up",
        "test_variants.py",
        "test_weight_grad_plan.py -knows",
        "test_explain.py",
        "test_many_gradients.py tile-",
        *_RECORDED,
    ),
    "cuda/weight_grad_*.py": (
        "test_variants.py",
        "test_weight_grad_plan.py -knows",
        "test_explain.py",
        "test_many_gradients.py weights",
        *_RECORDED,
    ),
    "cuda/wgmma_*.py": (_RULES, *_WGMMA, *_FAMILY),
    "cuda/structs.py": ("test_structs.py", _STRUCTS),
    "cuda/gemm_*.py": ("test_correlation.py", "test_gemm_plan.py", "test_split_plan.py", _GEMMS, *_FAMILY),
    "cuda/conv_plan.py": (*_PLANS, "test_tune.py", "test_precision.py", "test_stem_plan.py", *_FAMILY),
    "cuda/correlation.py": (
        "test_correlation.py",
        "test_gemm_plan.py",
        "test_explain.py",
        "test_stem_plan.py",
        "test_runs.py",
        _GEMMS,
        *_FAMILY,
    ),
    "cuda/fragments.py": (
        "test_gemm_plan.py",
        "test_runs.py",
        _MMA,
        *_FAMILY,
    ),
    "cuda/params.py": (
        "test_params.py",
        "test_gemm_plan.py",
        "test_stem_plan.py",
        "test_pool_plan.py",
        "test_cuda_errors.py",
    ),
    "cuda/multiples.py": (_LAYOUTS, "test_bands_plan.py", "test_direct_plan.py", "test_gemm_plan.py"),
    # ---- CUDA: devices
    "cuda/cache.py": ("test_compile_folders.py", "test_compile_cache.py", "test_trust.py"),
    "cuda/trust.py": ("test_trust.py", "test_compile_cache.py"),
    "cuda/idle_axes.py": ("test_ranks_cuda.py",),
    "cuda/compile.py": (*_COMPILER, "test_cuda_errors.py", "test_cli_compile.py"),
    "cuda/nvrtc.py": (*_COMPILER, "test_cli_compile.py"),
    "cuda/sources.py": ("test_sources.py", *_COMPILER),
    "cuda/kernel_files.py": ("test_sources.py", "test_structs.py"),
    "cuda/variant.py": ("test_variant.py", "test_variants.py"),
    "cuda/*rates.py": ("test_benchmarks_learn.py",),
    "cuda/choice.py": ("test_tune.py", "test_tuned.py", *_PLANS),
    "cuda/floor.py": ("test_limits.py", "test_explain.py", "test_precision.py"),
    "cuda/limits.py": (
        _RULES,
        "test_limits.py",
        "test_gemm_plan.py",
        "test_explain.py",
        "test_pool_plan.py",
        "test_tune.py",
    ),
    "cuda/plan*.py": (
        "test_explain.py",
        "test_tune.py",
        "test_cuda_launch.py -axes_of_one",
        "test_gemm_plan.py",
        "test_ranks_cuda.py parameters",
        "test_wgmma_plan.py lie_last",
    ),
    "cuda/launching.py": (*_PLANS, "test_complex.py", "test_plan_borders.py"),
    "cuda/tuned.py": ("test_tuned.py", "test_tune.py"),
    "cuda/variants.py": ("test_variants.py", "test_gemm_plan.py", "test_sources.py"),
    "cuda/interchange.py": ("test_cuda_interchange.py",),
    "cuda/prepared.py": (
        "test_cuda_errors.py",
        "test_packed.py",
        "test_cuda_interchange.py",
        "test_tensor_map.py",
        "test_finish_plan.py",
        "test_finish_plan.py residuals_are_found complex_residuals",
        "test_cuda_launch.py -axes_of_one",
    ),
    "cuda/device.py": ("test_host_rules.py fill_the_cache", *_CALLS),
    "cuda/*": _CALLS,
}
