"""A bundle as the scheduler's :class:`~controlplane.scheduler.rules.Rules`: asked often, evaluated seldom.

Each point remembers its answers under the tuple of the facts that its rules read, so that a filter over ten thousand
nodes that reads model and zone costs a few dozen evaluations. What the engine sees is built from that tuple and nothing
else: an answer cannot depend on what is not in its key. A rule whose whole answer is a bare field, whole-number
arithmetic over fields, or a list of those, needs no engine at all, and asks it only for the words of its errors.

Memory is bounded: a point that remembers more than :data:`MEMO_LIMIT` answers forgets all of them and starts again.
That changes speed, never an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, attrgetter, mul, sub
from typing import Generic, TypeVar

from controlplane.domain.workloads import GangTerms
from controlplane.policy.compiled import CompiledPolicy
from controlplane.policy.documents import Place
from controlplane.policy.engine import Engine, Fault, Program, Value, fault_of
from controlplane.policy.evaluation import Evaluation, Observer, Outcome
from controlplane.policy.reads import Read, widest
from controlplane.policy.terms import WrongTerms, terms_of
from controlplane.policy.tree import Tree
from controlplane.policy.vocabulary import BY_NAME, PARAMS, CelType, Point
from controlplane.policy.vocabulary import Answer as PointAnswer
from controlplane.scheduler.facts import (
    BudgetFacts,
    CandidateFacts,
    ClusterFacts,
    CohortFacts,
    HomeFacts,
    JobFacts,
    NodeFacts,
    OfferFacts,
    QueueFacts,
    RoleFacts,
    ServiceFacts,
    ShortageFacts,
    VictimFacts,
)
from controlplane.scheduler.rules import WORST_SCORE, Answer

MEMO_LIMIT = 65_536
"""Answers that one point remembers."""
BEST_SCORE = -WORST_SCORE - 1
LAST = 2**62
"""The place in the order of what an ordering rule failed for."""

T = TypeVar("T")
Facts = object
"""A record of :mod:`controlplane.scheduler.facts`, an instant in milliseconds, or ``None``."""


Ask = Callable[[tuple[Facts, ...]], "Answer[T]"]
"""A question to one point: the facts in the order of its variables."""


@dataclass(slots=True)
class Counter:
    """What was asked of one point, and what it cost."""

    asked: int = 0
    evaluated: int = 0
    """Times that the engine evaluated an expression."""
    remembered: int = 0
    """Distinct tuples of facts that were decided by the engine."""
    direct: int = 0
    """Answered by a bare field, without engine or memory."""
    faults: int = 0


@dataclass(slots=True)
class Counters:
    """The same for all points."""

    points: dict[str, Counter] = field(default_factory=lambda: {name: Counter() for name in BY_NAME})

    @property
    def asked(self) -> int:
        """Questions in all."""
        return sum(counter.asked for counter in self.points.values())

    @property
    def evaluated(self) -> int:
        """CEL evaluations in all."""
        return sum(counter.evaluated for counter in self.points.values())

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Per point, as JSON keeps it."""
        return {
            name: {
                "asked": counter.asked,
                "evaluated": counter.evaluated,
                "remembered": counter.remembered,
                "direct": counter.direct,
                "faults": counter.faults,
            }
            for name, counter in self.points.items()
        }


# --- keys: from facts to a tuple, and from the tuple to what the engine sees -----------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """The part of a key that comes from one argument: how it is taken, and how the engine's record is made of it."""

    position: int
    take: Callable[[Facts], Hashable]
    name: str
    build: Callable[[Hashable], Value]


def clean(value: object) -> Value:
    """A fact as the engine takes it: exact integers, text without NUL and without lone surrogates."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in value else value
        return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {str(clean(key)): clean(value[key]) for key in sorted(value)}
    if isinstance(value, Sequence):
        return [clean(item) for item in value]
    raise TypeError(f"a fact of type {type(value).__name__} is not part of the vocabulary")


def _hashable(value: object) -> Hashable:
    """A list or map as a tuple that is the same for equal values, whatever order they were built in."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        return tuple(value)
    assert isinstance(value, Hashable)
    return value


def _column(point: Point, name: str, reads: Sequence[Read]) -> _Column:
    position = next(i for i, variable in enumerate(point.variables) if variable.name == name)
    variable = point.variables[position]
    if variable.record is None:
        return _Column(position, _as_it_is, name, clean)
    record = variable.record
    simple = all(read.key is None and _type_of(point, read) != CelType.LABELS for read in reads)
    fields = [read.field for read in reads]
    if simple:
        take: Callable[[Facts], Hashable] = attrgetter(*fields)
    else:
        take = _mixed_getter(reads)
    if variable.optional:
        take = _absent_as_none(take)
    labels = {field_.name for field_ in record.fields if field_.type == CelType.LABELS}
    if simple and not variable.optional:
        return _Column(position, take, name, _plain_builder(tuple(fields)))
    is_single = simple and len(fields) == 1
    return _Column(position, take, name, lambda part: _record(reads, labels, (part,) if is_single else part))


def _plain_builder(fields: tuple[str, ...]) -> Callable[[Hashable], Value]:
    """The record of fields that are neither maps nor absent as a whole: the usual case, made quick."""
    is_single = len(fields) == 1

    def build(part: Hashable) -> Value:
        values = (part,) if is_single else part
        assert isinstance(values, tuple)
        record: dict[Value, Value] = {}
        for name, value in zip(fields, values, strict=True):
            if type(value) is int:
                record[name] = value
            elif value is not None:
                record[name] = clean(value)
        return record

    return build


def _type_of(point: Point, read: Read) -> CelType | None:
    variable = point.variable(read.variable)
    found = variable.record.field(read.field) if variable is not None and variable.record is not None else None
    return found.type if found else None


def _as_it_is(value: Facts) -> Hashable:
    assert isinstance(value, Hashable)
    return value


def _absent_as_none(take: Callable[[Facts], Hashable]) -> Callable[[Facts], Hashable]:
    return lambda facts: None if facts is None else take(facts)


def _mixed_getter(reads: Sequence[Read]) -> Callable[[Facts], Hashable]:
    getters = tuple(_getter(read) for read in reads)
    if len(getters) == 1:
        only = getters[0]
        return lambda facts: (only(facts),)
    return lambda facts: tuple([getter(facts) for getter in getters])


def _getter(read: Read) -> Callable[[Facts], Hashable]:
    get = attrgetter(read.field)
    if read.key is None:
        return lambda facts: _hashable(get(facts))
    key = read.key

    def of_key(facts: Facts) -> Hashable:
        found: Hashable = get(facts).get(key)
        return found

    return of_key


def _record(reads: Sequence[Read], labels: set[str], part: Hashable) -> Value:
    """The record that the engine sees: only what is read, absent where the fact is ``None``."""
    record: dict[Value, Value] = {}
    if part is None:
        return {name: {} for name in sorted({read.field for read in reads if read.field in labels})}
    assert isinstance(part, tuple)
    for read, value in zip(reads, part, strict=True):
        if read.key is not None:
            held = record.setdefault(read.field, {})
            if value is not None and isinstance(held, dict):
                held[read.key] = clean(value)
        elif value is not None:
            record[read.field] = clean(dict(value) if read.field in labels and isinstance(value, tuple) else value)
    return record


# --- one point -------------------------------------------------------------------------------------------------------


class _PointRules(Generic[T]):
    """The rules of one point, with their memory."""

    def __init__(
        self,
        point: Point,
        policies: Sequence[CompiledPolicy],
        params: Mapping[str, Value],
        engine: Engine,
        answer: Callable[[Outcome], Answer[T]],
        shape: Callable[[Value], T],
        counter: Counter,
        observers: list[Observer] | None = None,
    ) -> None:
        self.observers = observers
        self.point = point
        self.shape = shape
        self.policies = policies
        self.engine = engine
        self.answer = answer
        self.counter = counter
        self.params: dict[Value, Value] = dict(params.items())
        reads = widest(frozenset(fact for policy in policies for fact in policy.facts))
        self.reads_params = any(expression.params for policy in policies for expression in policy.expressions)
        self.reads = frozenset(read.path for read in reads)
        by_name = {
            variable.name: sorted(read for read in reads if read.variable == variable.name)
            for variable in point.variables
        }
        self.columns = tuple(_column(point, name, found) for name, found in by_name.items() if found)
        self.key = _key_function(self.columns)
        self.memo: dict[Hashable, Answer[T]] = {}
        self.straight = _straight(policies) if observers is None else None
        self.says_int = point.answer in (PointAnswer.INT, PointAnswer.OPTIONAL_INT)

    def evaluate(self, key: Hashable) -> Answer[T]:
        """The answer for a key that is not remembered."""
        parts = (key,) if len(self.columns) == 1 else key
        assert isinstance(parts, tuple)
        data: dict[str, Value] = {PARAMS: self.params} if self.reads_params else {}
        for column, part in zip(self.columns, parts, strict=True):
            data[column.name] = column.build(part)
        counter = self.counter
        if self.straight is not None:
            program, at, where = self.straight
            value = program.evaluate(data)
            counter.evaluated += 1
            if self.says_int and type(value) is int:  # the usual case, made quick
                found = Answer(self.shape(value), where)
            elif isinstance(value, Fault):
                found = self.answer(Outcome(None, False, at, value))
            else:
                found = self.answer(Outcome(value, True, at))
        else:
            asking = Evaluation(data, self.engine, self._observer())
            outcome = asking.ask(self.policies)
            counter.evaluated += asking.evaluations
            found = self.answer(outcome)
        counter.remembered += 1
        counter.faults += found.fault is not None
        if len(self.memo) >= MEMO_LIMIT:
            self.memo.clear()
        self.memo[key] = found
        return found

    def _observer(self) -> Observer | None:
        if self.observers is None:
            return None
        self.observers.append(Observer())
        return self.observers[-1]

    def bind(self, *, is_all_evaluated: bool) -> Ask[T]:
        """The fastest way to ask: arguments in the order of the point's variables. With ``is_all_evaluated`` it takes
        no short cut past the engine."""
        direct = _direct(self) if not is_all_evaluated else None
        if direct is not None:
            return direct
        key_of, memo, evaluate, counter = self.key, self.memo, self.evaluate, self.counter

        def ask(arguments: tuple[Facts, ...]) -> Answer[T]:
            counter.asked += 1
            key = key_of(arguments)
            found = memo.get(key)
            return found if found is not None else evaluate(key)

        return ask


def _straight(policies: Sequence[CompiledPolicy]) -> tuple[Program, Place, str] | None:
    """The program of rules that are one expression, without conditions, variables or explanation; and its place."""
    if len(policies) != 1 or len(policies[0].expressions) != 1:
        return None
    match = policies[0].rule.matches[0]
    if match.output is None or match.output.presence is not None or match.condition is not None:
        return None
    return match.output.program, match.at, f"{match.at.file}:{match.at.line}"


def _key_function(columns: Sequence[_Column]) -> Callable[[tuple[Facts, ...]], Hashable]:
    """The key of one column is its part, of several the tuple of their parts; written out for the usual few."""
    match columns:
        case []:
            return lambda _: ()
        case [one]:
            take, at = one.take, one.position
            return lambda arguments: take(arguments[at])
        case [one, two]:
            take_1, at_1, take_2, at_2 = one.take, one.position, two.take, two.position
            return lambda arguments: (take_1(arguments[at_1]), take_2(arguments[at_2]))
        case [one, two, three]:
            first = _key_function([one, two])
            take_3, at_3 = three.take, three.position
            return lambda arguments: (*first(arguments), take_3(arguments[at_3]))  # type: ignore[misc]
        case _:
            pairs = tuple((column.take, column.position) for column in columns)
            return lambda arguments: tuple([take(arguments[at]) for take, at in pairs])


# --- answers without the engine --------------------------------------------------------------------------------------


def _only_output(rules: _PointRules[T]) -> Tree | None:
    """The expression that is all there is of the rules of a point."""
    if len(rules.policies) != 1 or len(rules.policies[0].rule.matches) != 1:
        return None
    match = rules.policies[0].rule.matches[0]
    output = match.output
    if not match.is_unconditional or output is None or match.explanation is not None or output.presence is not None:
        return None
    return output.tree


def _bare_field(rules: _PointRules[T]) -> str | None:
    """The path of the field that is the whole answer."""
    tree = _only_output(rules)
    if tree is None or _term(tree, rules.point, rules.params) is None or tree.kind != "select":
        return None
    return None if tree.children[0].name == PARAMS else f"{tree.children[0].name}.{tree.name}"


def _direct(rules: _PointRules[T]) -> Ask[T] | None:
    """A way to answer rules that are one bare field or whole-number arithmetic, or a list of those."""
    output = _only_output(rules)
    if output is None:
        return None
    match = rules.policies[0].rule.matches[0]
    parts = output.children if output.kind == "list" else [output]
    terms = [_term(part, rules.point, rules.params) for part in parts]
    known = [term for term in terms if term is not None]
    if len(known) < len(terms):
        return None
    return _direct_asker(rules, match.at, known, is_list=output.kind == "list")


def _direct_asker(rules: _PointRules[T], at: Place, terms: Sequence[Term], *, is_list: bool) -> Ask[T]:
    counter, answer, shape = rules.counter, rules.answer, rules.shape
    where = f"{at.file}:{at.line}"
    only = terms[0] if terms else None
    key_of, memo, evaluate = rules.key, rules.memo, rules.evaluate

    def by_engine(arguments: tuple[Facts, ...]) -> Answer[T]:
        key = key_of(arguments)
        return memo.get(key) or evaluate(key)

    def erred() -> Answer[T]:
        counter.faults += 1
        return answer(Outcome(None, False, at, fault_of("no such key")))

    def ask_one(arguments: tuple[Facts, ...]) -> Answer[T]:
        counter.asked += 1
        counter.direct += 1
        try:
            return Answer(shape(only(arguments)), where)  # type: ignore[misc]
        except AttributeError:  # a variable that may be absent is absent
            return erred()
        except ArithmeticError:
            return by_engine(arguments)

    def ask_list(arguments: tuple[Facts, ...]) -> Answer[T]:
        counter.asked += 1
        counter.direct += 1
        try:
            return Answer(shape([term(arguments) for term in terms]), where)
        except AttributeError:
            return erred()
        except ArithmeticError:
            return by_engine(arguments)

    return ask_list if is_list else ask_one


Term = Callable[[tuple[Facts, ...]], Value]


def _term(node: Tree, point: Point, params: Mapping[Value, Value]) -> Term | None:
    if node.kind == "const" and isinstance(node.constant, int):
        constant = node.constant
        return lambda _: constant
    if node.kind == "call" and node.name == "-_" and node.type == "int":
        inner = _term(node.children[0], point, params)
        return None if inner is None else _negated(inner)
    if node.kind == "call":
        return _arithmetic(node, point, params)
    if node.kind == "ident":
        found = [i for i, variable in enumerate(point.variables) if variable.name == node.name and not variable.record]
        return _of_argument(found[0], None) if found else None
    if node.kind != "select" or node.is_test or node.children[0].kind != "ident":
        return None
    owner = node.children[0].name
    if owner == PARAMS:
        value = params[node.name]
        return (lambda _: value) if isinstance(value, int) else None
    for position, variable in enumerate(point.variables):
        if variable.name == owner and variable.record is not None:
            found_field = variable.record.field(node.name)
            if found_field is not None and not found_field.optional and found_field.type in (CelType.INT, CelType.BOOL):
                return _of_argument(position, node.name)
    return None


def _arithmetic(node: Tree, point: Point, params: Mapping[Value, Value]) -> Term | None:
    """Sums, differences, products, quotients and remainders of whole numbers, as CEL has them: what leaves 64 bits and
    what divides by zero raises ``ArithmeticError``."""
    if node.type != "int" or node.name not in _OPERATIONS or any(child.type != "int" for child in node.children):
        return None
    left, right = (_term(child, point, params) for child in node.children)
    if left is None or right is None:
        return None
    first, second, of = left, right, _OPERATIONS[node.name]

    def result(arguments: tuple[Facts, ...]) -> int:
        value = of(first(arguments), second(arguments))  # type: ignore[arg-type]  # both are typed as int
        if _LEAST <= value <= _MOST:
            return value
        raise OverflowError

    return result


def _negated(inner: Term) -> Term:
    def result(arguments: tuple[Facts, ...]) -> int:
        value: int = -inner(arguments)  # type: ignore[operator, assignment]  # it is typed as int
        if value <= _MOST:
            return value
        raise OverflowError

    return result


def _quotient(left: int, right: int) -> int:
    """Cut towards zero."""
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: int, right: int) -> int:
    """With the sign of what is divided. CEL refuses the one quotient that leaves 64 bits here, too."""
    if left == _LEAST and right == -1:
        raise OverflowError
    return left - right * _quotient(left, right)


_LEAST, _MOST = -(2**63), 2**63 - 1
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "_+_": add,
    "_-_": sub,
    "_*_": mul,
    "_/_": _quotient,
    "_%_": _remainder,
}


def _of_argument(position: int, name: str | None) -> Term:
    if name is None:
        return lambda arguments: arguments[position]  # type: ignore[return-value]
    get = attrgetter(name)

    def of_field(arguments: tuple[Facts, ...]) -> Value:
        value: Value = get(arguments[position])
        return value

    return of_field


# --- outcomes as answers, one per point ------------------------------------------------------------------------------


class _NoAnswer(Exception):
    """The value is none that the point understands: the rule gave no answer. Its text, if any, says what is wrong."""


def _optional_text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _optional_int(value: Value) -> int | None:
    return value if isinstance(value, int) else None


def _ints(value: Value) -> Sequence[int]:
    if not isinstance(value, list):
        raise _NoAnswer
    return tuple(value)  # type: ignore[arg-type]  # the check has seen to the type of its elements


def _strings(value: Value) -> Sequence[str]:
    assert isinstance(value, list)
    return tuple(str(item) for item in value)


def _depth(value: Value) -> int:
    assert isinstance(value, int)
    return max(0, value)


def _terms(value: Value) -> GangTerms:
    if not isinstance(value, dict):
        raise _NoAnswer
    try:
        return terms_of(dict(value.items()))
    except WrongTerms as wrong:
        raise _NoAnswer(str(wrong)) from wrong


def _bool(value: Value) -> bool:
    if not isinstance(value, bool):
        raise _NoAnswer
    return value


def _score(value: Value) -> int:
    if not isinstance(value, int):
        raise _NoAnswer
    return value if WORST_SCORE < value <= BEST_SCORE else min(max(value, WORST_SCORE + 1), BEST_SCORE)


def _answer_of(name: str, shape: Callable[[Value], T], closed: Callable[[str], T]) -> Callable[[Outcome], Answer[T]]:
    """How an outcome becomes the answer of a point. ``closed`` gives the closed value from the fault's sentence."""
    so = BY_NAME[name].closed

    def answer(outcome: Outcome) -> Answer[T]:
        where = f"{outcome.at.file}:{outcome.at.line}" if outcome.at is not None else None
        kind = outcome.fault.kind if outcome.fault is not None else "it gave no answer"
        if outcome.fault is None:
            try:
                return Answer(shape(outcome.value), where)
            except _NoAnswer as reason:
                kind = str(reason) or kind
        fault = f"{where or name}: the rule failed, so {so}: {kind}"
        return Answer(closed(fault), where, fault)

    return answer


# --- the port --------------------------------------------------------------------------------------------------------

_ADMITS: Answer[str | None] = Answer(None)
_AS_ASKED: Answer[GangTerms] = Answer(GangTerms())
_ELIGIBLE: Answer[bool] = Answer(True)
_INDIFFERENT: Answer[int] = Answer(0)
_STAYS: Answer[int | None] = Answer(None)
_MAY_BORROW: Answer[bool] = Answer(True)
_NOBODY: Answer[Sequence[str]] = Answer(())
_EVERYBODY: Answer[Sequence[str]] = Answer(("queue", "others"))
_NO_RESERVATION: Answer[int] = Answer(0)
_AS_IT_IS: Answer[int | None] = Answer(None)
_TAKES_NOTHING: Answer[int] = Answer(0)


class BundleRules:
    """The rules of one bundle. Not for use by several threads at once: each takes its own from the bundle."""

    def __init__(
        self,
        digest: str,
        policies: Mapping[str, Sequence[CompiledPolicy]],
        params: Mapping[str, Value],
        engines: Mapping[str, Engine],
        engine_name: str,
        observers: list[Observer] | None = None,
        *,
        is_all_evaluated: bool = False,
    ) -> None:
        """``observers`` collects what each evaluation went through, for coverage. ``is_all_evaluated``: nothing is
        answered without the engine; the answer is the same, and takes longer."""
        self._digest = digest
        self._engine_name = engine_name
        self.counters = Counters()
        self._reads: dict[str, frozenset[str]] = {}
        self._scoring_field: str | None = None

        def bound(name: str, shape: Callable[[Value], T], closed: Callable[[str], T]) -> Ask[T] | None:
            found = policies.get(name)
            if not found:
                return None
            answer, counter = _answer_of(name, shape, closed), self.counters.points[name]
            point = _PointRules(BY_NAME[name], found, params, engines[name], answer, shape, counter, observers)
            self._reads[name] = point.reads
            if name == "scoring":
                self._scoring_field = _bare_field(point)
            return point.bind(is_all_evaluated=is_all_evaluated)

        self._admission = bound("admission", _optional_text, lambda fault: fault)
        self._queue_order = bound("ordering.queue", _ints, lambda _: (LAST,))
        self._job_order = bound("ordering.job", _ints, lambda _: (LAST,))
        self._backfill_order = bound("ordering.backfill", _ints, lambda _: (LAST,))
        self._gang = bound("gang", _terms, lambda _: GangTerms())
        self._eligibility = bound("eligibility", _bool, lambda _: False)
        self._scoring = bound("scoring", _score, lambda _: WORST_SCORE)
        self._quota = bound("quota", _bool, lambda _: False)
        self._allow = bound("preemption.allow", _strings, lambda _: ())
        self._victim = bound("preemption.victim", _optional_int, lambda _: None)
        self._reservation = bound("reservation", _depth, lambda _: 0)
        self._overtaking = bound("overtaking", _strings, lambda _: ("others",))
        self._service_replicas = bound("service.replicas", _optional_int, lambda _: None)
        self._service_take = bound("service.take", _depth, lambda _: 0)
        self._burst = bound("burst", _optional_int, lambda _: None)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def engine(self) -> str:
        return self._engine_name

    @property
    def job_order_reads(self) -> frozenset[str]:
        return self._reads.get("ordering.job", frozenset({"job.priority"}))

    @property
    def may_order_backfill(self) -> bool:
        return self._backfill_order is not None

    @property
    def backfill_order_reads(self) -> frozenset[str]:
        return self._reads.get("ordering.backfill", frozenset())

    @property
    def queue_order_reads(self) -> frozenset[str]:
        return self._reads.get("ordering.queue", frozenset({"queue.weighted_share_ppb"}))

    @property
    def admission_reads(self) -> frozenset[str]:
        return self._reads.get("admission", frozenset())

    @property
    def may_give_terms(self) -> bool:
        return self._gang is not None

    @property
    def gang_reads(self) -> frozenset[str]:
        return self._reads.get("gang", frozenset())

    @property
    def eligibility_reads(self) -> frozenset[str]:
        return self._reads.get("eligibility", frozenset())

    @property
    def scoring_reads(self) -> frozenset[str]:
        return self._reads.get("scoring", frozenset())

    @property
    def scoring_field(self) -> str | None:
        return self._scoring_field

    @property
    def burst_reads(self) -> frozenset[str]:
        return self._reads.get("burst", frozenset())

    def admission(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[str | None]:
        ask = self._admission
        return ask((job, queue, now_ms)) if ask is not None else _ADMITS

    def queue_order(self, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        ask = self._queue_order
        return ask((queue, now_ms)) if ask is not None else Answer((queue.weighted_share_ppb,))

    def job_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        ask = self._job_order
        return ask((job, queue, now_ms)) if ask is not None else Answer((-job.priority,))

    def backfill_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        ask = self._backfill_order
        return ask((job, queue, now_ms)) if ask is not None else self.job_order(job, queue, now_ms)

    def gang(self, job: JobFacts, queue: QueueFacts, home: HomeFacts | None, now_ms: int) -> Answer[GangTerms]:
        ask = self._gang
        return ask((job, queue, home, now_ms)) if ask is not None else _AS_ASKED

    def eligibility(self, job: JobFacts, role: RoleFacts, cluster: ClusterFacts, node: NodeFacts) -> Answer[bool]:
        ask = self._eligibility
        return ask((job, role, cluster, node)) if ask is not None else _ELIGIBLE

    def scoring(
        self,
        role: RoleFacts,
        cluster: ClusterFacts,
        before: NodeFacts,
        after: NodeFacts,
        candidate: CandidateFacts | None,
    ) -> Answer[int]:
        ask = self._scoring
        return ask((role, cluster, before, after, candidate)) if ask is not None else _INDIFFERENT

    @property
    def may_preempt(self) -> bool:
        return self._allow is not None

    @property
    def may_reserve(self) -> bool:
        return self._reservation is not None

    def quota(self, job: JobFacts, queue: QueueFacts, cohort: CohortFacts) -> Answer[bool]:
        ask = self._quota
        return ask((job, queue, cohort)) if ask is not None else _MAY_BORROW

    def preemption_allow(self, job: JobFacts, queue: QueueFacts, shortage: ShortageFacts) -> Answer[Sequence[str]]:
        ask = self._allow
        return ask((job, queue, shortage)) if ask is not None else _NOBODY

    @property
    def preemption_victim_reads(self) -> frozenset[str]:
        return self._reads.get("preemption.victim", frozenset({"victim.unsaved_ms", "victim.gpus_milli"}))

    def preemption_victim(self, preemptor: JobFacts, victim: VictimFacts) -> Answer[int | None]:
        ask = self._victim
        return ask((preemptor, victim)) if ask is not None else Answer(victim.unsaved_ms * victim.gpus_milli)

    def reserve(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        ask = self._reservation
        return ask((job, queue, now_ms)) if ask is not None else _NO_RESERVATION

    @property
    def may_block(self) -> bool:
        return self._overtaking is not None

    def overtaking(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[str]]:
        ask = self._overtaking
        return ask((job, queue, now_ms)) if ask is not None else _EVERYBODY

    @property
    def may_scale(self) -> bool:
        return self._service_replicas is not None

    def service_replicas(
        self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int
    ) -> Answer[int | None]:
        ask = self._service_replicas
        return ask((job, service, queue, now_ms)) if ask is not None else _AS_IT_IS

    def service_take(self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        ask = self._service_take
        return ask((job, service, queue, now_ms)) if ask is not None else _TAKES_NOTHING

    def burst(
        self,
        job: JobFacts,
        queue: QueueFacts,
        home: HomeFacts,
        offer: OfferFacts,
        budget: BudgetFacts | None,
        now_ms: int,
    ) -> Answer[int | None]:
        ask = self._burst
        return ask((job, queue, home, offer, budget, now_ms)) if ask is not None else _STAYS
