"""NVIDIA's GPUs."""

from memprof.analysis.records.device_family import COLLECTIVES_OF_GPU, SPACES_OF_GPU, DeviceFamily

FACTS = DeviceFamily(
    platform="cuda",
    device="GPU",
    memory_spaces=SPACES_OF_GPU,
    collective_spaces=COLLECTIVES_OF_GPU,
    has_cuda=True,
    has_schedule_options=True,
    has_share_pool=True,
    offloads=True,
    device_files="nvidia[0-9]*",
    mark=b'"operation_queue_id"',
    dumped_as=r"sm_(?P<capability>\d+\.\d+)[a-z]?_gpu|gpu",
)
