"""AMD's GPUs. Programs compiled for them elsewhere can be imported; memprof cannot compile for them."""

from memprof.analysis.records.device_family import COLLECTIVES_OF_GPU, SPACES_OF_GPU, DeviceFamily

FACTS = DeviceFamily(
    platform="rocm",
    device="GPU",
    memory_spaces=SPACES_OF_GPU,
    collective_spaces=COLLECTIVES_OF_GPU,
    has_schedule_options=True,
    device_files="kfd",
    dumped_as=r"gfx\w+_gpu",
)
