# ruff: noqa: E501 - the lines are as they were posted
"""What runs that were out of memory have logged: a few lines each, as they were posted, with where.

`source` is the public thread or page; versions are those that it names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PostedLog:
    source: str
    text: str


POSTED = {
    "gpu, program listed (jax 0.3)": PostedLog(
        "https://github.com/jax-ml/jax/issues/13428",
        """\
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    6.00MiB
              constant allocation:         0B
        maybe_live_out allocation:    6.00MiB
     preallocated temp allocation:         0B
                 total allocation:   12.00MiB
              total fragmentation:         0B (0.00%)
Peak buffers:
        Buffer 1:
                Size: 6.00MiB
                Operator: op_name="jit(concatenate)/jit(main)/concatenate[dimension=0]" \
source_file="/media/gccrcv/Data/Opensources/multinerf/internal/models.py" source_line=689
                XLA Label: concatenate
                Shape: f32[4096,128,3]
                ==========================

        Buffer 2:
                Size: 384.0KiB
                Entry Parameter Subshape: f32[256,128,3]
                ==========================
""",
    ),
    "gpu, program summed up (jax 0.4)": PostedLog(
        "https://github.com/patrickbryant1/AFProfile/issues/8",
        """\
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:  372.76MiB
              constant allocation:    48.5KiB
        maybe_live_out allocation:    9.64GiB
     preallocated temp allocation:    4.44GiB
                 total allocation:   14.44GiB
              total fragmentation:  680.30MiB (4.60%)
""",
    ),
    "gpu, several devices, XLA's own attempt, the pool's picture (jax 0.4.34)": PostedLog(
        "https://github.com/jax-ml/jax/issues/24309",
        """\
2024-10-15 16:30:37.290084: W external/xla/xla/service/hlo_rematerialization.cc:3005] Can't reduce memory use below \
21.15GiB (22705764841 bytes) by rematerialization; only reduced to 90.75GiB (97440000040 bytes), down from 90.75GiB \
(97440000040 bytes) originally
2024-10-15 16:30:47.781059: W external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of \
memory trying to allocate 26.83GiB (rounded to 28804500480)requested by op\x20
2024-10-15 16:30:47.781317: W external/xla/xla/tsl/framework/bfc_allocator.cc:508] \
***************************************************************_____________________________________
E1015 16:30:47.781354  473320 pjrt_stream_executor_client.cc:3084] Execution of replica 0 failed: \
RESOURCE_EXHAUSTED: Out of memory while trying to allocate 28804500256 bytes.
""",
    ),
    "gpu, far more than there is (jax 0.5)": PostedLog(
        "https://github.com/jax-ml/jax/issues/27354",
        """\
2025-03-23 20:28:49.804627: W external/xla/xla/hlo/transforms/simplifiers/hlo_rematerialization.cc:3021] Can't reduce \
memory use below 0B (0 bytes) by rematerialization; only reduced to 1.25TiB (1374521760000 bytes), down from 1.25TiB \
(1374521760000 bytes) originally
2025-03-23 20:28:59.832181: W external/xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of \
memory trying to allocate 1.25TiB (rounded to 1374521760000)requested by op\x20
""",
    ),
    "gpu, after tries of the autotuner (jax 0.6)": PostedLog(
        "https://github.com/flatironinstitute/nemos/issues/345",
        """\
2025-05-18 21:59:55.086788: W external/xla/xla/tsl/framework/bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of \
memory trying to allocate 3.37GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may \
mean that there could be performance gains if more memory were available.
2025-05-18 21:59:55.963174: W external/xla/xla/tsl/framework/bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of \
memory trying to allocate 4.49GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may \
mean that there could be performance gains if more memory were available.
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3199993600 bytes.
""",
    ),
    "gpu, an array of its own (jax 0.4.29)": PostedLog(
        "https://github.com/ecmwf-lab/ai-models-graphcast/issues/18",
        """\
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on \
device ordinal 0
""",
    ),
    "gpu, before RESOURCE_EXHAUSTED had its name (jax 0.2)": PostedLog(
        "https://github.com/kingoflolz/mesh-transformer-jax/issues/66",
        """\
2021-07-21 16:15:16.513776: E external/org_tensorflow/tensorflow/compiler/xla/pjrt/pjrt_stream_executor_client.cc:1981]\
 Execution of replica 0 failed: Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0
""",
    ),
    "cpu (jax 0.4)": PostedLog(
        "https://github.com/google-deepmind/weathernext/issues/44",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 124867611608 bytes.\n",
    ),
    "tpu, compiling, buffers listed (jax 0.4)": PostedLog(
        "https://github.com/erfanzar/EasyDeL/issues/166",
        """\
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory \
space hbm. Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G.

Total hbm usage >= 65.05G:
    reserved          1.25G
    program          63.80G
    arguments            0B

Output size 0B; shares 0B with arguments.

Program hbm requirement 63.80G:
    global            1.14M
    scoped            4.56M
    HLO temp         63.79G (100.0% utilization: Unpadded (63.58G) Padded (63.58G), 0.3% fragmentation (210.89M))

  Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name="jit(casual_language_model_train_step)/jit(main)/jvp(FlaxFalconForCausalLMModule)/transformer/h/0\
/self_attention/...qhd,...khd->...hqk/dot_general[preferred_element_type=bfloat16]" \
source_file="/home/ai/workspace/EasyDel/src/easydel/modules/attention_module.py" source_line=1059
     Shape: f32[32,4096,4096]{1,2,0:T(8,128)}
     Unpadded size: 2.00G
     XLA label: fusion.1265.remat3 = fusion(custom-call.224, custom-call.241, custom-call.22), kind=kOutput, \
calls=fused_computation.957.clone.clone.clone
     Allocation type: HLO temp
     ==========================
""",
    ),
    "tpu, compiling, an early form (2021)": PostedLog(
        "https://github.com/sokrypton/ColabFold/issues/62",
        """\
UnfilteredStackTrace: RuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. \
Exceeded hbm capacity by 1.60G.

Total hbm usage >= 9.60G:
    reserved        530.00M\x20
    program           9.08G\x20
    arguments            0B\x20

  Largest program allocations in hbm:

  1. Size: 124.00M
     Shape: f32[512,245,256]{2,1,0:T(8,128)}
     Unpadded size: 122.50M
     Extra memory due to padding: 1.50M (1.0x expansion)
""",
    ),
    "tpu, compiling, with a number (2026)": PostedLog(
        "https://github.com/EnzymeAD/Enzyme-JAX/pull/2422",
        """\
ERROR: LoadError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. Ran out of memory in \
memory space hbm. Used 215.17G of 31.25G hbm. Exceeded hbm capacity by 183.92G.
""",
    ),
    "tpu, given up early": PostedLog(
        "https://github.com/jax-ml/jax/issues/7822",
        """\
Compilation failure: Aborting compilation early because it's unlikely to have enough memory. Requires 3.47E, has \
14.49G available.
""",
    ),
    "tpu, one allocation larger than the memory (2026)": PostedLog(
        "https://openxla.org/xla/oom_debugging.md",
        """\
XlaRuntimeError: RESOURCE_EXHAUSTED: Allocation (size=107374182400) would exceed memory (size=17179869184) :: \
#allocation7 [shape = 'u8[327680,327680]{1,0:T(8,128)(4,1)}', space=hbm, size = 0xffffffffffffffff, tag = 'output of \
xor_convert_fusion@{}'] :: <no-hlo-instruction>
""",
    ),
    "tpu, running (2024)": PostedLog(
        "https://github.com/huggingface/diffusers/issues/8358",
        """\
ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 196.00M. That was not possible. \
There are 60.94M free.; (0x0x0_HBM0)
""",
    ),
    "tpu, loading a program (2023)": PostedLog(
        "https://github.com/huggingface/transformers/issues/22328",
        """\
  (0) RESOURCE_EXHAUSTED: Attempting to reserve 10.51G at the bottom of memory. That was not possible. There are 8.97G \
free, 0B reserved, and 8.97G reservable.
""",
    ),
    "the allocator's bins and chunks (TensorFlow, the same allocator)": PostedLog(
        "https://github.com/tensorflow/tensorflow/issues/17092",
        """\
2018-02-17 14:02:53.755606: I tensorflow/core/common_runtime/bfc_allocator.cc:630] Bin (268435456):     Total Chunks: \
2, Chunks in use: 1. 14.59GiB allocated for chunks. 8.49GiB in use in bin. 8.49GiB client-requested in use in bin.
2018-02-17 14:02:53.755622: I tensorflow/core/common_runtime/bfc_allocator.cc:646] Bin for 8.49GiB was 256.00MiB, \
Chunk State:\x20
2018-02-17 14:02:53.755645: I tensorflow/core/common_runtime/bfc_allocator.cc:652]   Size: 6.09GiB | Requested Size: \
781.2KiB | in_use: 0, prev:   Size: 144.96MiB | Requested Size: 144.96MiB | in_use: 1
2018-02-17 14:02:53.755676: I tensorflow/core/common_runtime/bfc_allocator.cc:665] Chunk at 0x10216400500 of size 9120000000
""",
    ),
    "the allocator's chunks and sums (TensorFlow, the same allocator)": PostedLog(
        "https://github.com/tensorflow/tensorflow/issues/3304",
        """\
I tensorflow/core/common_runtime/bfc_allocator.cc:692] 124 Chunks of size 3964928 totalling 468.88MiB
I tensorflow/core/common_runtime/bfc_allocator.cc:692] 1 Chunks of size 4219136 totalling 4.02MiB
I tensorflow/core/common_runtime/bfc_allocator.cc:696] Sum Total of in-use chunks: 479.76MiB
I tensorflow/core/common_runtime/bfc_allocator.cc:698] Stats:\x20
Limit:                   503270604
InUse:                   503061248
MaxInUse:                503061248
NumAllocs:                20717987
MaxAllocSize:              4219136
""",
    ),
}
