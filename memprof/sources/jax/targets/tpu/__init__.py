"""Google's TPUs."""

from memprof.analysis.records.device_family import HBM, HOST, DeviceFamily

FACTS = DeviceFamily(
    platform="tpu",
    device="TPU",
    # Named as in libtpu's memory report (0.0.42 to 0.0.50), except 3, which is v4's CMEM. It names no others.
    memory_spaces={0: HBM, 1: "vmem", 2: "smem", 3: "cmem", 5: HOST},
    has_temp_total=False,
    has_time_estimate=True,
    planned_percent=95,  # as in its log: "rematerialization limit = 95% hbm - ..."
    pads_arrays=True,
    device_files="accel[0-9]*",
    mark=b'"scoped_memory_configs"',
)
