"""The messages of pprof's `profile.proto`, the format of JAX's memory profile, which many viewers read.

Names and numbers of the fields are those of google/pprof `proto/profile.proto`. Each text occurs once in
`string_table`; other fields hold its index. A sample is a stack, innermost call first, with a value for each sample
type.
"""

from __future__ import annotations

from typing import Any

from memprof.analysis.hlo.hlo_proto import message_classes

MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
    "Label": {"key": (1, "int64"), "str": (2, "int64"), "num": (3, "int64"), "num_unit": (4, "int64")},
    "Sample": {"location_id": (1, "uint64[]"), "value": (2, "int64[]"), "label": (3, "Label[]")},
    "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
    "Location": {"id": (1, "uint64"), "line": (4, "Line[]")},
    "Function": {"id": (1, "uint64"), "name": (2, "int64"), "system_name": (3, "int64"), "filename": (4, "int64")},
    "Profile": {
        "sample_type": (1, "ValueType[]"),
        "sample": (2, "Sample[]"),
        "location": (4, "Location[]"),
        "function": (5, "Function[]"),
        "string_table": (6, "string[]"),
        "comment": (13, "int64[]"),
        "default_sample_type": (14, "int64"),
    },
}
# The class is made at run time, so a type checker does not know its fields.
Profile: Any = message_classes("memprof.pprof", MESSAGES)["Profile"]
