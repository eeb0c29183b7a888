"""The steps of a program, what each needs and touches: loops, branches, values that share memory."""

from __future__ import annotations

from hlo import Step, program_of
from hlo_nodes import BACKWARD, FORWARD, PLAIN, UNNAMED, array, f32, tuple_of

from memprof.analysis.attribution.module_paths import ModulePaths
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import decode_buffer_table
from memprof.analysis.hlo.liveness import replay
from memprof.analysis.hlo.program_order import ProgramOrder
from memprof.analysis.memory.device_traces import device_traces
from memprof.analysis.records.categories import Role
from memprof.analysis.scheduling.memory_graph import MemoryGraph

V = f32(4)  # 16 bytes


class _Graph:
    """The graph of a step, with names in place of numbers; the beginning of `name` is `(name`."""

    def __init__(self, step: Step) -> None:
        proto = step.proto()
        program = program_of(proto)
        table = decode_buffer_table(proto, program)
        values = Values(program, table, dict(enumerate(step._arguments)), ModulePaths(()))
        self.order = ProgramOrder(program, values.order)
        traces = device_traces([replay(trace, table) for trace in table.traces], table, values, self.order)
        self.graph = MemoryGraph(program, table, traces, values, self.order)
        self.names = [
            f"({each.instruction.name}" if each.is_beginning else each.instruction.name for each in self.graph.steps
        ]
        (live_ranges,) = (trace.liveness.live_ranges for trace in traces)
        self._piece_of = {
            program.instructions[table.logical_buffers[live.buffer_id].instruction].name: piece
            for live, piece in zip(live_ranges, self.graph.piece_of, strict=True)
        }

    def needs(self) -> dict[str, list[str]]:
        """What each step needs that is no argument or constant."""
        return {
            self.names[number]: [self.names[other] for other in needed]
            for number, needed in enumerate(self.graph.operations.needs)
            if needed
        }

    def touches(self, name: str) -> set[str]:
        """The steps that work on the piece of memory of a value."""
        piece = self._piece_of[name]
        return {self.names[n] for n, touched in enumerate(self.graph.operations.touches) if piece in touched}

    def bytes_of(self, name: str) -> int:
        return self.graph.operations.sizes[self._piece_of[name]]

    def share(self, *names: str) -> bool:
        return len({self._piece_of[name] for name in names}) == 1


def test_an_operation_needs_the_makers_of_its_operands_through_what_passes_them_on() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a = step.op("a", "negate", V, [x], FORWARD)
    b = step.op("b", "negate", V, [x], FORWARD)
    packed = step.tuple(a, step.op("view", "bitcast", V, [b]))
    c = step.op("c", "add", V, [step.element(packed, 1), a], FORWARD)
    step.free(a, b, after=c)
    step.result(step.op("y", "negate", V, [c], PLAIN))
    graph = _Graph(step)
    assert graph.names == ["x", "a", "b", "c", "y"]
    assert graph.needs() == {"a": ["x"], "b": ["x"], "c": ["a", "b"], "y": ["c"]}
    assert [graph.touches(name) for name in "abc"] == [{"a", "c"}, {"b", "c"}, {"c", "y"}]
    assert (graph.bytes_of("a"), graph.share("a", "b")) == (16, False)
    assert graph.graph.fenced == frozenset()


def test_values_that_replace_each_other_in_place_are_one_piece() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a = step.op("a", "negate", V, [x], FORWARD)
    b = step.op("b", "sine", V, [a], FORWARD, shares=a)
    c = step.op("c", "negate", V, [b], FORWARD)
    step.free(b, after=c)
    step.result(step.op("y", "negate", V, [c], PLAIN))
    graph = _Graph(step)
    assert graph.share("a", "b")
    assert not graph.share("b", "c")
    assert graph.touches("a") == {"a", "b", "c"}


def test_what_reads_a_value_runs_before_it_is_overwritten_in_every_order() -> None:
    """`b` frees no memory and takes none, `read` takes much: without the rule, `b` would run first."""
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a = step.op("a", "negate", V, [x], FORWARD)
    read = step.op("read", "broadcast", f32(1000), [a], FORWARD)
    total = step.op("total", "reduce", V, [read], FORWARD)
    b = step.op("b", "sine", V, [a], FORWARD, shares=a)
    step.free(read, after=total)
    step.result(step.op("y", "add", V, [b, total], PLAIN))
    graph = _Graph(step)
    assert graph.needs()["b"] == ["a"]
    orders = [[graph.names[number] for number in order] for order in graph.graph.orders()]
    assert orders
    assert all(order.index("read") < order.index("b") for order in orders)


def test_what_a_barrier_passes_on_is_fenced() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a, b = (step.op(name, "negate", V, [x], FORWARD) for name in "ab")
    passed = step.op("passed", "optimization-barrier", V, [a], "jit(step)/optimization_barrier")
    step.result(step.op("y", "add", V, [passed, b], PLAIN))
    graph = _Graph(step)
    assert graph.graph.fenced == {graph._piece_of["a"]}
    assert graph.needs()["y"] == ["a", "b"]


def _looping() -> Step:
    """`a`, a loop that makes `inside` of it, `beside` that does not need the loop, and `y` that needs both."""
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a = step.op("a", "negate", V, [x], FORWARD)
    body, condition = step.computation("body"), step.computation("condition")
    carried = body.parameter(tuple_of(V))
    inside = body.op("inside", "negate", V, [body.element(carried, 0)], FORWARD)
    body.tuple(body.op("next", "sine", V, [inside], FORWARD, shares=a))
    condition.parameter(tuple_of(V))
    condition.op("less", "constant", array("pred"))
    loop = step.op("loop", "while", tuple_of(V), [step.tuple(a)], UNNAMED, called=[body, condition])
    beside = step.op("beside", "cosine", V, [x], BACKWARD)
    step.result(step.op("y", "add", V, [step.element(loop, 0), beside], PLAIN))
    return step


def test_a_loop_begins_before_its_body_and_ends_behind_it() -> None:
    graph = _Graph(_looping())
    inner = ["condition.p0", "less", "body.p0", "body.p0.element0.in.body", "inside", "next", "body.tuple4"]
    assert graph.names == ["x", "a", "(loop", *inner, "loop", "beside", "y"]
    steps = dict(zip(graph.names, graph.graph.steps, strict=True))
    begin, end = graph.names.index("(loop"), graph.names.index("loop")
    assert [steps[name].within for name in inner] == [begin] * 7
    assert [steps[name].within for name in ("a", "(loop", "loop", "beside")] == [-1] * 4
    assert [steps[name].begun for name in ("a", "(loop", "inside", "loop", "y")] == [-1, -1, -1, begin, -1]
    assert [each.is_beginning for each in steps.values()] == [number == begin for number in range(len(steps))]
    # The body and the condition have each a first step.
    assert (steps["less"].since, steps["inside"].since, steps["beside"].since) == (begin + 1, begin + 3, 0)
    positions = {instruction.name: place for place, instruction in enumerate(graph.order.instructions)}
    assert steps["(loop"].position == positions["condition.p0"]
    assert steps["loop"].position == positions["loop"]
    assert end == begin + 8


def test_what_a_loop_runs_needs_its_beginning_and_its_end_needs_all_of_it() -> None:
    graph = _Graph(_looping())
    needs = graph.needs()
    assert needs["(loop"] == ["a"]
    assert needs["inside"] == ["a", "(loop"]  # what the loop carries begins as `a`
    assert needs["next"] == ["inside"]
    assert needs["loop"] == graph.names[graph.names.index("(loop") : graph.names.index("loop")]
    assert needs["y"] == ["loop", "beside"]
    assert needs["beside"] == ["x"]
    assert graph.touches("inside") == {"inside", "next"}


def test_other_orders_keep_a_loop_together_and_what_is_needed_first() -> None:
    graph = _Graph(_looping())
    needs = graph.graph.operations.needs
    begin, end = graph.names.index("(loop"), graph.names.index("loop")
    orders = [list(order) for order in graph.graph.orders()]
    assert orders
    for order in orders:
        assert sorted(order) == list(range(len(needs)))
        place = {number: at for at, number in enumerate(order)}
        assert all(place[other] < place[number] for number, needed in enumerate(needs) for other in needed)
        assert sorted(order[place[begin] : place[end] + 1]) == list(range(begin, end + 1))


def test_a_branch_does_not_need_what_its_sibling_makes() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    which = step.argument("which", Role.BATCH, array("s32"))
    branches = []
    for number in range(2):
        branch = step.computation(f"branch{number}")
        made = branch.op(f"made{number}", "negate", V, [branch.parameter(V)], FORWARD)
        branch.op(f"result{number}", "sine", V, [made], FORWARD)
        branches.append(branch)
    switch = step.op("switch", "conditional", V, [which, x, x], UNNAMED, called=branches)
    step.result(step.op("y", "negate", V, [switch], PLAIN))
    graph = _Graph(step)
    needs = graph.needs()
    assert graph.names[2:-2] == ["(switch", "branch0.p0", "made0", "result0", "branch1.p0", "made1", "result1"]
    assert needs["made0"] == needs["made1"] == ["x", "(switch"]
    assert needs["result1"] == ["made1"]
    assert needs["switch"] == graph.names[2:-2]
    assert needs["y"] == ["switch"]


def test_a_background_operation_reads_its_operands_until_its_end() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a = step.op("a", "negate", V, [x], FORWARD)
    start = step.op("start", "copy-start", tuple_of(V, V, array("u32")), [a], UNNAMED, holds=(0, 2))
    between = step.op("between", "sine", V, [x], FORWARD)
    done = step.op("done", "copy-done", V, [start])
    step.free(a, after=done)
    step.result(step.op("y", "add", V, [between, done], PLAIN))
    graph = _Graph(step)
    assert graph.touches("a") == {"a", "start", "done"}
    assert graph.needs()["done"] == ["start"]  # which returns `a`, too
