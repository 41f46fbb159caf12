"""sbatch scripts: ``#SBATCH`` lines to one job (or one for each index of an array).

Slurm allocates whole nodes' shares: with ``--nodes`` a member is what one node gives; without it, every task is a
member of its own and may share a node with others. Each option has a fate: it is read, it belongs to the program, or
the script is refused with the option's name, since leaving it out would change where or when the job starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pydantic import ValidationError

from controlplane.domain.quantities import MAX_AMOUNT, MAX_GPUS_PER_NODE, MAX_MEMBERS, MAX_MS, MILLI, ceil_div
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake.manifests.submission import Draft
from controlplane.intake.tables import domain_fault, shown, whole_number
from controlplane.intake.traces import IntakeError

MAX_ARRAY = 10_000
"""Jobs of one array."""

_SHORT = {
    "-A": "--account",
    "-a": "--array",
    "-b": "--begin",
    "-C": "--constraint",
    "-c": "--cpus-per-task",
    "-D": "--chdir",
    "-d": "--dependency",
    "-e": "--error",
    "-G": "--gpus",
    "-H": "--hold",
    "-i": "--input",
    "-J": "--job-name",
    "-k": "--no-kill",
    "-L": "--licenses",
    "-M": "--clusters",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-s": "--oversubscribe",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
}
_READ = frozenset(
    {
        *("--job-name", "--partition", "--account", "--qos", "--time", "--nodes", "--ntasks", "--ntasks-per-node"),
        *("--cpus-per-task", "--mem", "--mem-per-cpu", "--mem-per-gpu", "--gres", "--gpus", "--gpus-per-node"),
        *("--gpus-per-task", "--array", "--licenses", "--requeue", "--no-requeue", "--priority"),
    }
)
_PROGRAM = frozenset(
    {
        *("--chdir", "--comment", "--error", "--export", "--get-user-env", "--input", "--mail-type", "--mail-user"),
        *("--open-mode", "--output", "--quiet", "--verbose", "--wait", "--parsable", "--export-file", "--signal"),
        *("--no-kill", "--oversubscribe", "--propagate", "--profile", "--acctg-freq", "--hint", "--cpu-freq"),
        *("--gpu-bind", "--gpu-freq", "--ignore-pbs", "--wait-all-nodes", "--kill-on-invalid-dep"),
    }
)
_FLAGS = frozenset({"--requeue", "--no-requeue", "--get-user-env", "--quiet", "--verbose", "--wait", "--parsable"})
_FLAGS_TOO = frozenset({"--hold", "--exclusive", "--oversubscribe", "--no-kill", "--contiguous", "--ignore-pbs"})
"""May also stand with a value."""

_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_WORD = re.compile(r"""(?:[^\s"'#]|"[^"]*"|'[^']*')+""")
_TIME = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,4}))?(?::([0-9]{1,4}))?\Z")
_MEMORY = re.compile(r"([0-9]{1,15})([KMGT]?)B?\Z", re.IGNORECASE)
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::([0-9]{1,15}))?\Z")
_TYPED = re.compile(r"(?:([A-Za-z][\w.-]*):)?([0-9]{1,15})\Z")
_LICENSE = re.compile(r"([\w.@-]+)(?:[:*]([0-9]{1,9}))?\Z")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z")
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}
_ENDLESS = {"0", "INFINITE", "UNLIMITED"}


@dataclass(frozen=True, slots=True)
class _Option:
    line: int
    value: str


@dataclass(slots=True)
class _Script:
    """The options of a script; of a repeated one the last, as Slurm has it."""

    file: str
    draft: Draft
    options: dict[str, _Option] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        option = self.options.get(name)
        return option.value if option else default

    def whole(self, name: str, most: int, default: int, least: int = 1) -> int:
        option = self.options.get(name)
        return whole_number(self.file, option.line, name, option.value, most, least) if option else default

    def fault(self, name: str, what: str, fix: str) -> IntakeError:
        option = self.options.get(name)
        return IntakeError(self.file, option.line if option else 0, f"{name} {what}", fix)

    def malformed(self, name: str, fix: str) -> IntakeError:
        return self.fault(name, f"is {shown(self.text(name))}", fix)


def jobs_of_script(file: str, text: str, draft: Draft) -> list[JobSpec]:
    """The jobs of a script. Raises :class:`IntakeError`; several refused options are all in the draft's refusals."""
    script = _Script(file, draft)
    for line, words in _directives(text):
        _read_words(script, line, words)
    if draft.refusals:
        return []
    try:
        spec = JobSpec(
            name=script.text("--job-name", PurePosixPath(file).name),
            queue=_queue(script),
            user=draft.context.user,
            priority=script.whole("--priority", 10**9, 0, least=0),
            roles=(_role(script),),
            labels={name: script.text(f"--{name}") for name in ("account", "qos") if script.text(f"--{name}")},
            estimate_ms=_time_ms(script),
        )
        if "--no-requeue" in script.options:
            spec = spec.model_copy(update={"max_attempts": 1})
    except ValidationError as error:
        raise domain_fault(file, 0, error) from error
    names = [f"{spec.name}-{index}" for index in _array(script)] or [spec.name]
    return [spec.model_copy(update={"name": name}) for name in names]


def _directives(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each directive; the first command ends them, as in Slurm."""
    for line, content in enumerate(text.splitlines(), start=1):
        directive = _DIRECTIVE.match(content)
        if directive:
            comment_free = re.split(r"\s#", directive.group(1), maxsplit=1)[0]
            yield line, [word.replace('"', "").replace("'", "") for word in _WORD.findall(comment_free)]
        elif content.strip() and not content.lstrip().startswith("#"):
            return


def _read_words(script: _Script, line: int, words: list[str]) -> None:
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--") and len(name) > 2:
            name, equals, value = word[:2], "=", word[2:]
        name = _SHORT.get(name, name)
        if not equals and name not in _FLAGS | _FLAGS_TOO:
            value = next(rest, "")
            if not value:
                raise IntakeError(script.file, line, f"{shown(name)} has no value", f"write {name}=VALUE")
        script.options[name] = _Option(line, value)
        if name not in _READ | _PROGRAM:
            script.draft.refusals.append(IntakeError(script.file, line, f"{shown(name)} is not supported", "remove it"))


def _queue(script: _Script) -> str:
    queue = script.text("--partition") or script.draft.context.queue
    if not queue:
        raise IntakeError(
            script.file, 0, "the script names no --partition", "set it, or give the queue when submitting"
        )
    if "," in queue:
        raise script.fault("--partition", f"is a list ({shown(queue)})", "name one")
    return queue


# --- size ------------------------------------------------------------------------------------------------------------


def _role(script: _Script) -> Role:
    members, tasks = _layout(script)
    cpus = tasks * script.whole("--cpus-per-task", 10**6, 1)
    gpus, model = _gpus(script, members, tasks)
    memory_bytes = _memory(script, members, cpus, gpus)
    return Role(
        count=members,
        cpu_milli=cpus * MILLI,
        memory_bytes=memory_bytes,
        gpus=gpus,
        gpu_models=(script.draft.context.model(model),) if model and gpus else (),
        other=_licenses(script, members),
    )


def _layout(script: _Script) -> tuple[int, int]:
    """(members, tasks in each)."""
    nodes = _nodes(script)
    per_node = script.whole("--ntasks-per-node", MAX_MEMBERS, 0, least=0)
    tasks = script.whole("--ntasks", MAX_MEMBERS, 0, least=0)
    if nodes and tasks:
        return nodes, per_node if per_node and per_node * nodes == tasks else ceil_div(tasks, nodes)
    if nodes:
        return nodes, per_node or 1
    if per_node and tasks:
        return ceil_div(tasks, per_node), min(tasks, per_node)
    if per_node:
        return 1, per_node
    return max(1, tasks), 1


def _nodes(script: _Script) -> int:
    """``--nodes``; 0 if it is not given."""
    fewest, dash, most = script.text("--nodes", "0").partition("-")
    if dash and fewest != most:
        raise script.fault("--nodes", f"is a range ({shown(script.text('--nodes'))})", "give one number of nodes")
    option = script.options.get("--nodes")
    return whole_number(script.file, option.line, "--nodes", fewest, MAX_MEMBERS, 1) if option else 0


def _gpus(script: _Script, members: int, tasks: int) -> tuple[int, str]:
    """(GPUs of each member, their model or nothing)."""
    asked = [name for name in ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gres") if name in script.options]
    if not asked:
        return 0, ""
    if len(asked) > 1:
        raise script.fault(asked[1], f"asks for GPUs, and so does {asked[0]}", "keep one of them")
    (name,) = asked
    gpus, model = _gres(script) if name == "--gres" else _typed(script, name)
    if name == "--gpus-per-task":
        gpus *= tasks
    elif name == "--gpus":
        if gpus % members:
            raise script.fault(
                name, f"is {gpus:,} for {members:,} members", "make it a multiple, or use --gpus-per-node"
            )
        gpus //= members
    else:
        _check_per_node(script, name, members)
    if gpus > MAX_GPUS_PER_NODE:
        what = f"asks for {gpus:,} GPUs in one member, above the limit of {MAX_GPUS_PER_NODE:,}"
        raise script.fault(name, what, "use more nodes")
    return gpus, model


def _typed(script: _Script, name: str) -> tuple[int, str]:
    match = _TYPED.match(script.text(name))
    if not match:
        raise script.malformed(name, "write it as 4 or a100:4")
    return int(match.group(2)), match.group(1) or ""


def _gres(script: _Script) -> tuple[int, str]:
    match = _GRES.match(script.text("--gres"))
    if not match:
        raise script.malformed("--gres", "write it as gpu:4 or gpu:a100:4; no other resource is supported")
    return int(match.group(2) or 1), match.group(1) or ""


def _check_per_node(script: _Script, name: str, members: int) -> None:
    """What is asked for a node says nothing about a task, unless there is one only."""
    if members > 1 and not _nodes(script) and "--ntasks-per-node" not in script.options:
        raise script.fault(name, "is for a node, but the number of nodes is open", "give --nodes")


def _memory(script: _Script, members: int, cpus: int, gpus: int) -> int:
    asked = [name for name in ("--mem", "--mem-per-cpu", "--mem-per-gpu") if name in script.options]
    if not asked:
        return 0
    if len(asked) > 1:
        raise script.fault(asked[1], f"asks for memory, and so does {asked[0]}", "keep one of them")
    (name,) = asked
    match = _MEMORY.match(script.text(name))
    if not match:
        raise script.malformed(name, "write it as 4000M or 16G")
    amount = int(match.group(1)) * _UNITS[match.group(2).upper()]
    if name == "--mem":
        _check_per_node(script, name, members)
        if amount == 0:
            raise script.fault(name, "is 0, which asks for all memory of a node", "give an amount")
    total = amount * {"--mem": 1, "--mem-per-cpu": cpus, "--mem-per-gpu": gpus}[name]
    if total > MAX_AMOUNT:
        raise script.fault(name, "is above the limit of 2^53 bytes", "correct it")
    return total


def _licenses(script: _Script, members: int) -> dict[str, int]:
    """Licences are asked for by the job, but counted by the member."""
    licenses: dict[str, int] = {}
    for part in filter(None, script.text("--licenses").split(",")):
        match = _LICENSE.match(part)
        if not match:
            raise script.malformed("--licenses", "write it as name:2,other:1")
        if members > 1:
            raise script.fault("--licenses", "are for the whole job, but it has several members", "remove it")
        licenses[match.group(1)] = int(match.group(2) or 1)
    return licenses


# --- time and arrays -------------------------------------------------------------------------------------------------


def _time_ms(script: _Script) -> int | None:
    """``--time``: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    text = script.text("--time")
    if not text or text.upper() in _ENDLESS:
        return None
    match = _TIME.match(text)
    if not match:
        raise script.malformed("--time", "write it as minutes, hours:minutes:seconds or days-hours")
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        seconds = ((days * 24 + (first or 0)) * 60 + (second or 0)) * 60 + (third or 0)
    elif third is not None:
        seconds = ((first or 0) * 60 + (second or 0)) * 60 + third
    else:
        seconds = (first or 0) * 60 + (second or 0)
    if seconds * 1_000 > MAX_MS:
        raise script.fault("--time", "is above the limit", "correct it")
    return seconds * 1_000


def _array(script: _Script) -> list[int]:
    """The indices of ``--array``; none without it."""
    text = script.text("--array")
    indices: dict[int, None] = {}
    if "%" in text:
        raise script.fault("--array", "limits how many run at once (%), which is not supported", "remove the limit")
    for part in text.split(",") if text else []:
        match = _RANGE.match(part)
        if not match:
            raise script.malformed("--array", "write it as 0-9, 1,3,5 or 0-20:5")
        first, last, step = (int(group) if group else None for group in match.groups())
        span = range(first or 0, (first or 0 if last is None else last) + 1, step or 1)
        if len(indices) + len(span) > MAX_ARRAY:
            raise script.fault("--array", f"has more than {MAX_ARRAY:,} jobs", "split it")
        indices.update(dict.fromkeys(span))
    return list(indices)
