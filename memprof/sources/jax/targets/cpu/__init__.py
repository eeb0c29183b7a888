"""The host's CPU. XLA's reported peak does not include temporaries there."""

from memprof.analysis.records.device_family import COLLECTIVES_OF_GPU, SPACES_OF_GPU, DeviceFamily

FACTS = DeviceFamily(
    platform="cpu",
    memory_spaces=SPACES_OF_GPU,
    collective_spaces=COLLECTIVES_OF_GPU,
    is_host=True,
    has_peak=False,
    dumped_as="cpu",
)
