"""Facts of fields: each is declared, what derives from it keeps its laws, and a field without it breaks one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from pydantic import BaseModel
from strikes import struck

from zbopt.cli.flag_records import takes
from zbopt.cli.flags import ProblemFlags
from zbopt.cli.problem import Problem, problem_of
from zbopt.costs.cutting import Candidate, cut_fields, require_cuttable
from zbopt.cpsat.scale import Scale
from zbopt.engine.reach import require_modelled
from zbopt.formats.minizinc import to_minizinc
from zbopt.formats.schema import json_schemas
from zbopt.graph import TaskGraph, expand
from zbopt.graph.memory import Tensor, allocated_units, allocations, policies, static_memory
from zbopt.problem.facts import (
    Axis,
    CutRule,
    Facts,
    ReferenceModel,
    Unit,
    declared,
    facts_by_field,
    facts_of,
    fields_in_use,
)
from zbopt.problem.instance import COMPUTE, Instance, Kind, read_instance, write_instance

REPOSITORY = Path(__file__).parents[2]
DECLARED: Mapping[str, Facts] = dict(facts_by_field(Instance))
"""The facts that the code declares. The laws that a field keeps are chosen by this, not by what a strike leaves."""
Document = dict[str, Any]

RECOMPUTE = {"recompute": "always"}
OFFLOAD = {"offload": "always", "offload_ticks": 2}
PORTS = {"communication": "link", "transfer_occupies": "port"}
ODD = Fraction(8, 7)
"""An amount with a denominator that no other amount of the same document has."""

SAMPLES: dict[str, Callable[[int], Document]] = {
    "schema_version": lambda _: {"schema": "zbopt.instance/1"},
    "name": lambda _: {"name": "two stages"},
    "stages": lambda _: {"stages": 2},
    "microbatches": lambda _: {"microbatches": 3},
    "stage_of": lambda _: {"stage_of": [1, 0]},
    "tick": lambda _: {"tick": "1us"},
    "rounding_ticks": lambda _: {"rounding_ticks": Fraction(1, 2)},
    "overlapped_ticks": lambda k: {"fused_backward_ticks": 6 * k, "overlapped_ticks": [20 * k, 30 * k]},
    "memory_cap": lambda _: {"memory_cap": [3 * ODD, 4 * ODD]},
    "activation": lambda _: {"activation": [ODD, 2 * ODD], "weight_share": 1 / ODD, "memory_cap": 9},
    "weight_share": lambda _: {"weight_share": [Fraction(1, 7), 1], "memory_cap": 9},
    "objective": lambda _: {"objective": "max_stage_span"},
    "barrier": lambda _: {"barrier": "post_validation", "optimizer_ticks": 0},
    "optimizer_ticks": lambda k: {"barrier": "global", "optimizer_ticks": [2 * k, k]},
    "iterations": lambda _: {"barrier": "global", "optimizer_ticks": 0, "iterations": 2},
    "input_ready_ticks": lambda k: {"input_ready_ticks": [0, k, 3 * k]},
    "reduction_occupies": lambda _: {"reduction_ticks": 2, "reduction_occupies": "node", "stages_per_node": 2},
    "barrier_ticks": lambda k: {"barrier": "global", "optimizer_ticks": 0, "barrier_ticks": k},
    "receive_buffers": lambda _: {"boundary": 1, "receive_buffers": 2, "memory_cap": 9},
    "memory_unit": lambda _: {"memory_unit": "GiB"},
    "recompute": lambda _: {"recompute": ["choose", "always"], "recompute_ticks": 2},
    "recompute_ticks": lambda k: {**RECOMPUTE, "recompute_ticks": [2 * k, 4 * k]},
    "checkpoint": lambda _: {**RECOMPUTE, "recompute_ticks": 2, "checkpoint": [Fraction(1, 7), 0], "memory_cap": 9},
    "offload": lambda _: {"offload": ["choose", "always"], "offload_ticks": 2, "reload_ticks": 2},
    "offload_ticks": lambda k: {"offload": "always", "offload_ticks": [2 * k, 4 * k], "reload_ticks": 2 * k},
    "reload_ticks": lambda k: {"offload": "always", "offload_ticks": 2 * k, "reload_ticks": [4 * k, 2 * k]},
    "offload_rest": lambda _: {**OFFLOAD, "reload_ticks": 2, "offload_rest": [Fraction(1, 7), 0], "memory_cap": 9},
    "host_link": lambda _: {**OFFLOAD, "reload_ticks": 2, "host_link": [0, 0]},
    "communication": lambda k: {"communication": "link", "comm_ticks": k},
    "transfer_occupies": lambda k: {**PORTS, "comm_ticks": k},
    "bandwidth": lambda k: {"comm_ticks": k, "boundary": 4, "bandwidth": Fraction(2)},
    "stages_per_node": lambda k: {"stages_per_node": 2, "node_comm_ticks": k},
    "node_comm_ticks": lambda k: {"stages_per_node": 2, "node_comm_ticks": k},
    "node_bandwidth": lambda k: {"stages_per_node": 2, "comm_ticks": k, "boundary": 4, "node_bandwidth": Fraction(2)},
    "comm_matrix": lambda k: {"comm_matrix": [[0, k], [2 * k, 0]]},
    "bandwidth_matrix": lambda k: {"comm_ticks": k, "boundary": 4, "bandwidth_matrix": [[1, 2], [4, 1]]},
    "collectives": lambda k: {**PORTS, "comm_ticks": k, "collectives": [{"kind": "F", "start": k, "ticks": k}]},
    "routes": lambda _: {
        "stage_of": [0, 1, 1, 0],
        "forward_ticks": 2,
        "backward_ticks": 2,
        "weight_ticks": 2,
        "routes": [{"virtual_stages": [0, 1], "microbatches": 1}, {"virtual_stages": [2, 3], "microbatches": 2}],
    },
    "microbatch_times": lambda k: {"microbatch_times": [{"microbatches": [1], "forward_ticks": [4 * k, 6 * k]}]},
}
"""For each field that needs others, or is no plain number, what to add to a step of two stages so that it is in use.

Times are multiples of k ticks.
"""

SILENT: dict[str, tuple[Document, Document]] = {
    "stage_of": ({"stage_of": [0, 1]}, {}),
    "overlapped_ticks": ({"fused_backward_ticks": 6, "overlapped_ticks": [None, None]}, {"fused_backward_ticks": 6}),
    "activation": ({"activation": 1, "memory_cap": 2}, {"memory_cap": 2}),
    "weight_share": ({"weight_share": 1, "memory_cap": 2}, {"memory_cap": 2}),
    "reduction_occupies": ({"reduction_ticks": 2, "reduction_occupies": "stage"}, {"reduction_ticks": 2}),
    "receive_buffers": ({"boundary": 1, "receive_buffers": 0, "memory_cap": 9}, {"boundary": 1, "memory_cap": 9}),
    **{
        name: ({name: 0, "memory_cap": 2}, {"memory_cap": 2})
        for name in (
            *("gradient_state", "boundary", "parameters", "gradients", "optimizer_state", "workspace", "reserve"),
        )
    },
    "recompute": ({"recompute": "never"}, {}),
    "checkpoint": ({**RECOMPUTE, "checkpoint": 0, "memory_cap": 2}, {**RECOMPUTE, "memory_cap": 2}),
    "offload": ({**OFFLOAD, "offload": "never"}, {}),
    "offload_rest": ({**OFFLOAD, "offload_rest": 0, "memory_cap": 2}, {**OFFLOAD, "memory_cap": 2}),
    "host_link": ({**OFFLOAD, "host_link": [0, 1]}, OFFLOAD),
    "transfer_occupies": ({"communication": "link", "transfer_occupies": "link"}, {"communication": "link"}),
    "stages_per_node": ({"stages_per_node": 2, "comm_ticks": 1}, {"comm_ticks": 1}),
}
"""For each field that declares which of its values say nothing: a document with such a value, and one without it."""

FILLED: dict[str, tuple[Document, Any]] = {
    "stage_of": ({}, (0, 1)),
    "activation": ({}, (1, 1)),
    "weight_share": ({}, (1, 1)),
    "optimizer_ticks": ({"barrier": "global"}, (0, 0)),
    "recompute_ticks": (RECOMPUTE, (2, 3)),
    "reload_ticks": (OFFLOAD, (2, 2)),
}
"""For each field whose default depends on others: a document without it, and what the field then is."""


def document(k: int, more: Document) -> Document:
    """Return a step of two uneven stages whose times are multiples of ``k``, with ``more`` on top."""
    times = {"forward_ticks": [2 * k, 3 * k], "backward_ticks": [4 * k, 5 * k], "weight_ticks": [4 * k, 2 * k]}
    return {"stages": 2, "microbatches": 3, **times, **more}


def sample(name: str, k: int = 1) -> Document:
    """Return a document in which the field ``name`` is in use; its times are multiples of ``k``."""
    return document(k, SAMPLES[name](k) if name in SAMPLES else plain(name, k))


def plain(name: str, k: int) -> Document:
    """Return a time or an amount for a field that needs no other one, by its axis and unit."""
    facts = DECLARED[name]
    number = {Unit.TICKS: k, Unit.MEMORY: ODD}[facts.unit]
    value = number if facts.axis is Axis.NONE else [2 * number, number]
    return {name: value, "memory_cap": 9} if facts.unit is Unit.MEMORY else {name: value}


def build(fields: Document) -> Instance:
    return Instance.model_validate(fields)


# What the code derives, as laws. Each takes a field and fails where the field's declaration lacks what it relies on.


def ticks_of_graph(graph: TaskGraph) -> tuple[Any, ...]:
    """Return everything in a graph that counts ticks, in its order."""
    return (
        [(task.duration_ticks, task.release_ticks) for task in graph.tasks],
        [edge.lag_ticks for edge in graph.precedences],
        [join.lag_ticks for join in graph.joins],
        [[(use.offset_ticks, use.ticks) for use in link.uses] for link in graph.links],
    )


def times(ticks: int, found: Any) -> Any:
    """Return numbers in lists, each ``ticks`` times as large."""
    return type(found)(times(ticks, entry) for entry in found) if isinstance(found, (list, tuple)) else ticks * found


def scaling_is_exact(name: str) -> None:
    """[D3] loses nothing: the scaled step takes as long in longer ticks, also where one field has another divisor."""
    mixed = sample(name, 6)
    mixed |= {own: value for own, value in sample(name, 5).items() if own == name}
    for fields in (sample(name, 3), mixed):
        instance = build(fields)
        scale = Scale.of(instance)
        assert times(scale.ticks, ticks_of_graph(expand(scale.instance))) == ticks_of_graph(expand(instance))
        assert scale.instance.lag_ticks(0, 1) * scale.ticks == instance.lag_ticks(0, 1)


def scaling_finds_the_divisor(name: str) -> None:
    """Of a step three times as long, [D3] makes the step itself."""
    if DECLARED[name].scales:
        scale = Scale.of(build(sample(name, 3)))
        assert (scale.ticks, scale.instance) == (3, build(sample(name, 1)))


def one_value_stands_for_all(name: str, folder: Path) -> None:
    """One value is the list of it, in the model, in a file that is written, and in the schema."""
    if not DECLARED[name].spreads:
        return
    fields = sample(name)
    first = fields[name][0] if isinstance(fields[name], list) else fields[name]
    single = build(fields | {name: first})
    assert single == build(fields | {name: [first, first]})
    file = folder / "step.json"
    write_instance(single, file)
    assert not isinstance(json.loads(file.read_text())[name], list)
    assert read_instance(file) == single
    for wrong in ([first], [first] * 3):
        with pytest.raises(ValueError, match=rf"{name} has {len(wrong)} values? for 2 {DECLARED[name].axis.value}s"):
            build(fields | {name: wrong})
    schema = jsonschema.Draft202012Validator(json_schemas()["instance"])
    assert list(schema.iter_errors(json.loads(file.read_text()))) == []


def one_value_is_refused(name: str) -> None:
    """A list that takes no one value for all says so, and so does its schema."""
    if DECLARED[name].one_for_all:
        return
    schema = json_schemas()["instance"]["properties"][name]
    assert schema["type"] == "array"
    with pytest.raises(ValueError, match=rf"{name} = 0: must be a list"):
        build(sample(name) | {name: 0})


def lists_have_their_shape(name: str) -> None:
    """A table by pairs of stages has a row and a column a stage; ready times are as many as microbatches."""
    if DECLARED[name].axis is Axis.STAGE_PAIR:
        fields = sample(name)
        with pytest.raises(ValueError, match="is not 2 rows of 2 values"):
            build(fields | {name: fields[name][:1]})
    if DECLARED[name].unit is Unit.MEMORY_PER_TICK:
        fields = sample(name)
        del fields["boundary"]
        with pytest.raises(ValueError, match=f"{name} is given but boundary is not"):
            build(fields)


def a_missing_field_has_its_default(name: str) -> None:
    """A field that is left out follows from the others, and the schema lets files leave it out."""
    if DECLARED[name].filled is not None:
        fields, expected = FILLED[name]
        assert name not in fields
        assert getattr(build(document(1, fields)), name) == expected
        assert name not in json_schemas()["instance"]["required"]


def units_are_part_of_names(name: str) -> None:
    """A time is called so: ``_ticks`` ends the name of every number of ticks, and of nothing else."""
    single = name not in ("comm_matrix", "collectives", "microbatch_times")
    unit = next(facts.unit for field, facts in facts_by_field(Instance) if field == name)
    assert not single or (unit is Unit.TICKS) == name.endswith("_ticks")


def lists_count_something(name: str) -> None:
    """A list of numbers or words has an axis; a list of structures, and a single value, has none."""
    value = getattr(build(sample(name)), name)
    is_list = isinstance(value, tuple) and not isinstance(value[0], BaseModel)
    axis = next(facts.axis for field, facts in facts_by_field(Instance) if field == name)
    assert is_list == (axis is not Axis.NONE)


def memory_is_whole_units(name: str) -> None:
    """A graph's memory units make every amount an integer, so that none is rounded."""
    instance = build(sample(name))
    if instance.memory_cap is None:
        return
    graph = expand(instance)
    assert graph.caps == tuple(
        (cap - static_memory(instance, stage)) * graph.memory_scale for stage, cap in enumerate(instance.memory_cap)
    )
    for v in range(2):
        for policy in policies(instance, v):
            exact = sum(entry.amount for entry in allocations(instance, v, policy, fused=False)) * graph.memory_scale
            assert sum(allocated_units(instance, v, policy, graph.memory_scale, fused=False).values()) == exact


def work_of(instance: Instance) -> dict[Kind, int]:
    """Return the ticks of all ops of a kind, the transfers left out: there are more of these between slices."""
    found: dict[Kind, int] = {}
    for task in expand(instance).tasks:
        if task.kind in COMPUTE | {Kind.G, Kind.OUT, Kind.IN}:
            found[task.kind] = found.get(task.kind, 0) + task.duration_ticks
    return found


def memory_of(instance: Instance) -> tuple[Any, ...]:
    """Return what a microbatch holds on all virtual stages and what the stages hold anyway, boundaries left out."""
    held: dict[Any, Fraction] = {}
    for v in range(instance.virtual_stages):
        for entry in allocations(instance, v, policies(instance, v)[-1], fused=False):
            if entry.tensor in (Tensor.ACTIVATION, Tensor.GRADIENT_STATE):
                held[entry.first, entry.last] = held.get((entry.first, entry.last), Fraction(0)) + entry.amount
    bare = instance.model_copy(update={"receive_buffers": None})
    return held, sum(static_memory(bare, stage) for stage in range(instance.stages)), instance.memory_cap


def cutting_keeps_the_whole(name: str) -> None:
    """Two slices of each part are the same work and the same memory, in ticks of half the length."""
    if DECLARED[name].cut is CutRule.REFUSED:
        return
    instance = build(sample(name, 2))
    require_cuttable(instance, "--placement auto")
    cut = build(dict(cut_fields(instance, Candidate("v", (0, 1, 1, 0), 2), 2)))
    assert work_of(cut) == times_of(2, work_of(instance))
    assert memory_of(cut) == memory_of(instance)
    assert cut.lag_ticks(0, 2) == 2 * instance.lag_ticks(0, 1)
    joins = [max((join.lag_ticks for join in expand(of).joins), default=0) for of in (cut, instance)]
    assert joins[0] == 2 * joins[1]
    releases = [sorted({task.release_ticks for task in expand(of).tasks}) for of in (cut, instance)]
    assert releases[0] == times(2, releases[1])
    if instance.overlapped_ticks is not None:
        assert cut.overlapped_ticks == instance.overlapped_ticks  # half as long, in ticks of half the length
    before, after = getattr(instance, name), getattr(cut, name)
    if DECLARED[name].unit in (Unit.NONE, Unit.MEMORY, Unit.SHARE):
        assert after == values_of_slices(DECLARED[name], before)


def values_of_slices(facts: Facts, of_parts: Any) -> Any:
    """Return what the slices of two parts on stages 0, 1, 1, 0 have of the parts' values."""
    if facts.cut is CutRule.GATHERED:
        return (sum(of_parts) / 2,) * 2  # each stage has a slice of both parts
    if facts.axis is Axis.VIRTUAL_STAGE:
        of_slices = [value for value in of_parts for _ in range(2)]
        return tuple(value / 2 for value in of_slices) if facts.cut is CutRule.DIVIDED else tuple(of_slices)
    return of_parts


def times_of(ticks: int, found: Mapping[Kind, int]) -> dict[Kind, int]:
    return {kind: ticks * value for kind, value in found.items()}


def asked(*arguments: str) -> Problem:
    """Return the problem that a command line asks about, read as ``zbopt solve`` reads it."""
    found = []

    @takes(ProblemFlags)
    def command(problem: ProblemFlags) -> int:
        found.append(problem_of(problem))
        return 0

    app = typer.Typer()
    app.command("ask")(command)
    typer.main.get_command(app).main(list(arguments), standalone_mode=False)
    return found[0]


def as_flags(fields: Document) -> list[str]:
    """Return the flags that say what a document says."""
    arguments = []
    for name, value in fields.items():
        flag = DECLARED[name].flag
        assert flag is not None, name
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        arguments += [flag.name, text.replace("_", "-")]
    return arguments


def a_flag_sets_the_field(name: str) -> None:
    """Flags that say what a document says make the same problem."""
    flag = DECLARED[name].flag
    if flag is None:
        return
    fields = sample(name)
    assert asked(*as_flags(fields)).instance == build(fields)
    if flag.is_list:
        with pytest.raises(ValueError, match="has 1 value"):
            asked(*as_flags({key: value for key, value in fields.items() if key != name}), flag.name, "0")


def a_flag_beside_a_file_is_noted(name: str, folder: Path) -> None:
    """A flag that may stand beside a file changes that field, and a note says so."""
    flag = DECLARED[name].flag
    if flag is None or not flag.beside_file:
        return
    fields, changes = sample(name), {name: sample(name)[name]}
    if name == "offload":
        fields["offload"] = "never"
    elif name == "iterations":
        del fields[name]
    else:
        fields = {key: value for key, value in fields.items() if key != name or name in document(1, {})}
    if name in ("barrier", "recompute"):
        fields = document(1, {})
    file = folder / "step.json"
    file.write_text(json.dumps(fields, default=str))
    found = asked(str(file), *as_flags(changes))
    assert any(note.startswith(f"{name} is ") and "; the file says " in note for note in found.notes)
    assert getattr(found.instance, name) == getattr(build(fields | changes), name)


def a_field_without_flag_can_be_replaced(name: str) -> None:
    """``Instance(...)`` and ``Instance.replace`` set what neither a flag nor an argument of ``zbopt.instance`` sets."""
    if DECLARED[name].flag is not None:
        return
    fields = sample(name)
    expected, without = build(fields), build({key: value for key, value in fields.items() if key != name})
    assert Instance(**fields) == expected
    assert getattr(without.replace(**{name: getattr(expected, name)}), name) == getattr(expected, name)


def programs_take_what_they_state(name: str) -> None:
    """The published program and models/pipeline.mzn take an instance in which what they state is in use."""
    if ReferenceModel.PUBLISHED in DECLARED[name].stated_by:
        require_modelled(build(sample(name)))
    if ReferenceModel.MINIZINC in DECLARED[name].stated_by:
        to_minizinc(build(sample(name)))


def labels_say_nothing(name: str) -> None:
    """To whoever solves, an instance with a label is the instance without it."""
    if DECLARED[name].is_label:
        labelled = build(sample(name))
        assert getattr(labelled, name) != getattr(build(document(1, {})), name)
        assert fields_in_use(labelled) == fields_in_use(build(document(1, {})))
        require_modelled(labelled)


def values_that_say_nothing_are_not_in_use(name: str) -> None:
    """Such a value leaves the task graph as it is without it; in a sample the field is in use."""
    facts = DECLARED[name]
    if not facts.is_label and name != "schema_version":
        assert name in fields_in_use(build(sample(name)))
    if facts.is_absent is not None:
        silent, without = (build(document(1, fields)) for fields in SILENT[name])
        assert name not in fields_in_use(silent)
        graphs = [replace(expand(instance), instance=silent) for instance in (silent, without)]
        assert graphs[0] == graphs[1]


def laws(name: str, folder: Path) -> Iterator[Callable[[], None]]:
    """Yield all laws, ready to be checked on a field."""
    for law in (
        *(scaling_is_exact, scaling_finds_the_divisor, one_value_is_refused, lists_have_their_shape),
        *(
            a_missing_field_has_its_default,
            units_are_part_of_names,
            lists_count_something,
            memory_is_whole_units,
            cutting_keeps_the_whole,
        ),
        *(
            a_flag_sets_the_field,
            a_field_without_flag_can_be_replaced,
            programs_take_what_they_state,
            labels_say_nothing,
        ),
        values_that_say_nothing_are_not_in_use,
    ):
        yield lambda law=law: law(name)  # type: ignore[misc]
    yield lambda: one_value_stands_for_all(name, folder)
    yield lambda: a_flag_beside_a_file_is_noted(name, folder)


def is_red(name: str, folder: Path) -> bool:
    """Return whether a law fails for the field, in whatever way."""
    for law in laws(name, folder):
        try:
            law()
        except (Exception, pytest.fail.Exception):
            return True
    return False


def declared_facts() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each declared fact: its field, its name, and what takes it out of the declaration."""
    neutral = {"axis": Axis.NONE, "unit": Unit.NONE, "cut": CutRule.REFUSED, "scales": False, "one_for_all": True}
    neutral |= {"is_label": False, "is_absent": None, "filled": None, "flag": None}
    for name, facts in DECLARED.items():
        for fact, nothing in neutral.items():
            if getattr(facts, fact) != nothing:
                yield name, fact, {fact: nothing}
        for program in sorted(facts.stated_by):
            yield name, f"stated by {program.name.lower()}", {"stated_by": facts.stated_by - {program}}
        for fact in ("beside_file", "is_list"):
            if facts.flag is not None and getattr(facts.flag, fact):
                yield name, fact, {"flag": replace(facts.flag, **{fact: False})}


STRIKES = list(declared_facts())


@pytest.mark.parametrize("name", DECLARED)
def test_laws_hold_for_every_field(name: str, tmp_path: Path) -> None:
    """A new field keeps every law by its declaration alone; it needs a sample here where it is no plain number."""
    for law in laws(name, tmp_path):
        law()


@pytest.mark.parametrize(("name", "fact", "changes"), STRIKES, ids=[f"{name}-{fact}" for name, fact, _ in STRIKES])
def test_a_struck_fact_breaks_a_law(name: str, fact: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Without any one declared fact, a law fails; with ``loss_ticks`` struck from scaling every test used to pass."""
    with struck(name, **changes):
        assert is_red(name, tmp_path), fact
    assert dict(facts_by_field(Instance)) == DECLARED


def test_many_facts_are_struck() -> None:
    """Every field declares some, but for the schema's and for routes, which is a structure that no slice can have."""
    assert len(STRIKES) > 200
    assert {name for name, _, _ in STRIKES} == set(DECLARED) - {"schema_version", "routes"}


def test_a_field_must_declare_facts() -> None:
    """Silence would be read as "means nothing": a field without facts is refused when they are asked for."""

    class Undeclared(BaseModel):
        cooldown_ticks: int = 0

    with pytest.raises(TypeError, match=r"declares no facts: .*annotate it with Facts"):
        fields_in_use(Undeclared())
    assert all(facts_of(field) == DECLARED[name] for name, field in Instance.model_fields.items())
    assert list(declared(Instance)) == list(Instance.model_fields)


def test_a_field_that_does_not_say_that_it_scales_stops_scaling() -> None:
    """In doubt times stay as they are: one field in use whose ticks are not known to scale is enough."""
    instance = build(sample("loss_ticks", 3))
    assert Scale.of(instance).ticks == 3
    with struck("loss_ticks", scales=False):
        assert Scale.of(instance) == Scale(instance, 1)


def test_documentation_names_every_field_with_its_axis() -> None:
    """The table of docs/files.md has each field once; a description says by what a list that spreads counts."""
    text = (REPOSITORY / "docs" / "files.md").read_text(encoding="utf-8")
    table = text[text.index("| field | meaning |") : text.index("Memory in one unit, and activations")]
    first_columns = [row.split(" | ")[0] for row in table.splitlines()[2:] if row.startswith("| ")]
    named = [name for column in first_columns for name in re.findall(r"`(\w+)`", column)]
    assert sorted(named) == sorted(set(DECLARED) - {"schema_version", "name", "rounding_ticks"})
    for name, facts in DECLARED.items():
        if facts.spreads:
            description = Instance.model_fields[name].description or ""
            assert f"by {facts.axis.value}" in description.lower(), name
