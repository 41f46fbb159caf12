"""openb: the real lists as jobs and nodes, and the arrivals of the published figures."""

from __future__ import annotations

import gzip
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.quantities import MILLI
from controlplane.intake import openb
from controlplane.intake.traces import IntakeError, Outcome, TraceJob, TraceNode, gpus_milli

NODES = "openb/openb_node_list_gpu_node.csv.gz"
DEFAULT = "openb/openb_pod_list_default.csv.gz"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"

read_pods = cache(openb.read_pods)
read_nodes = cache(openb.read_nodes)


def pods(*rows: str) -> list[TraceJob]:
    return openb.parse_pods("pods.csv", (HEAD + "\n".join(rows)).encode())


def nodes(*rows: str) -> list[TraceNode]:
    return openb.parse_nodes("nodes.csv", ("sn,cpu_milli,memory_mib,gpu,model\n" + "\n".join(rows)).encode())


def test_the_real_nodes(data_dir: Path) -> None:
    found = read_nodes(data_dir / NODES)
    assert len(found) == 1_213
    assert openb.capacity_milli(found) == 6_212_000
    assert {node.flavor for node in found} == {"A10", "G2", "G3", "P100", "T4", "V100M16", "V100M32"}


def test_nodes_without_gpus_are_of_the_cpu_flavor(data_dir: Path) -> None:
    found = read_nodes(data_dir / "openb/openb_node_list_all_node.csv.gz")
    assert len(found) == 1_523
    assert sum(node.flavor == openb.CPU_FLAVOR for node in found) == 310


@pytest.mark.parametrize(
    ("file", "count", "asked"),
    [
        ("openb_pod_list_default", 8_152, 6_086_800),
        ("openb_pod_list_gpushare40", 8_152, 5_641_250),
        ("openb_pod_list_multigpu20", 8_324, 7_086_800),
    ],
)
def test_the_real_pods(data_dir: Path, file: str, count: int, asked: int) -> None:
    found = read_pods(data_dir / f"openb/{file}.csv.gz")
    assert len(found) == count
    assert sum(gpus_milli(job.spec) for job in found) == asked
    assert [job.arrival_ms for job in found] == sorted(job.arrival_ms for job in found)


def test_pods_that_ask_for_the_same_share_their_roles(data_dir: Path) -> None:
    found = read_pods(data_dir / DEFAULT)
    shared = {id(job.spec.roles) for job in found}
    asked = {(job.spec.roles[0].model_dump_json(), job.spec.labels.get(openb.QOS_LABEL)) for job in found}
    assert len(shared) == len(asked) < 200


@pytest.mark.slow
@pytest.mark.bench
def test_reading_the_default_list_is_quick(data_dir: Path) -> None:
    best_s = 9.0
    for _ in range(5):
        start = time.perf_counter()
        openb.read_pods(data_dir / DEFAULT)
        best_s = min(best_s, time.perf_counter() - start)
    assert best_s < 0.3


def test_a_pod_in_full() -> None:
    (job,) = pods("p,16000,32768,1,250,V100M16|V100M32,LS,Succeeded,100,260,110")
    (role,) = job.spec.roles
    assert (role.cpu_milli, role.memory_bytes, role.gpus, role.gpu_milli) == (16_000, 2**35, 1, 250)
    assert role.gpu_models == ("V100M16", "V100M32")
    assert job.spec.labels == {"qos": "LS"}
    assert (job.arrival_ms, job.runtime_ms, job.outcome) == (100_000, 150_000, Outcome.FINISHED)


def test_a_pod_that_never_started_lasted_from_creation_to_deletion() -> None:
    (job,) = pods("p,1,1,0,0,,,Pending,100,260,")
    assert (job.runtime_ms, job.outcome) == (160_000, Outcome.CANCELLED)


def test_a_pod_without_times_never_ends() -> None:
    found = openb.parse_pods("p.csv", b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,8,1000\n")
    assert [(job.arrival_ms, job.runtime_ms, job.outcome) for job in found] == [(0, None, Outcome.RUNNING)]


def test_a_pod_without_gpus_accepts_any_model() -> None:
    (job,) = pods("p,1,1,0,0,T4,,,,,")
    assert job.spec.roles[0].gpus == 0
    assert job.spec.roles[0].gpu_models == ()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("p,1,1,-1,1000,,,,,,", "pods.csv:2: num_gpu is -1, below 0; correct it"),
        ("p,1,1,1000000000000,1000,,,,,,", "pods.csv:2: num_gpu is 1,000,000,000,000, above the limit of 1,024; "),
        ("p,1,1,nan,1000,,,,,,", "pods.csv:2: num_gpu is 'nan', not a whole number; write it as decimal digits"),
        ("p,1,1,1.0,1000,,,,,,", "pods.csv:2: num_gpu is '1.0', not a whole number; "),
        ("p,1_000,1,1,1000,,,,,,", "pods.csv:2: cpu_milli is '1_000', not a whole number; "),
        ("p,1,inf,1,1000,,,,,,", "pods.csv:2: memory_mib is 'inf', not a whole number; "),
        ("p,1,99999999999999999999999,1,1000,,,,,,", "pods.csv:2: memory_mib is '99999999999999999999999', not "),
        ("p,1,9007199254740991,1,1000,,,,,,", "pods.csv:2: memory_mib is 9,007,199,254,740,991, above the limit "),
        ("p,1,1,1,0,,,,,,", "pods.csv:2: gpu_milli is 0, below 1; "),
        ("p,1,1,1,1001,,,,,,", "pods.csv:2: gpu_milli is 1,001, above the limit of 1,000; "),
        ("p,1,1,2,500,,,,,,", "pods.csv:2: gpu_milli is 500 with num_gpu 2; ask a fraction of one GPU only"),
        ("p,,1,1,1000,,,,,,", "pods.csv:2: cpu_milli is empty, not a whole number; "),
        (",1,1,1,1000,,,,,,", "pods.csv:2: name is empty; name the row"),
        ("-p,1,1,1,1000,,,,,,", "pods.csv:2: name is '-p': String should match pattern"),
        ("p,1,1,1,1000,a||b,,,,,", "pods.csv:2: gpu_models.1 is '': String should have at least 1 character; "),
        ("p,1,1,1,1000,,,Sleeping,,,", "pods.csv:2: pod_phase is 'Sleeping'; use one of Succeeded, Failed, "),
        ("p,1,1,1,1000,,,,9,5,", "pods.csv:2: creation_time 9, scheduled_time 9 and deletion_time 5 are out of order"),
        ("p,1,1,1", "pods.csv:2: the row has 4 cells, the header has 11; make them equal"),
        ("p,1,1,0,0,,,,,,\np,1,1,0,0,,,,,,", "pods.csv:3: name 'p' is already in line 2; give every row its own name"),
        ('p,1,1,0,0,,,,,,\n"\nq",1,1,x,0,,,,,,', "pods.csv:4: "),
    ],
)
def test_a_wrong_pod_is_named_with_its_place(row: str, sentence: str) -> None:
    with pytest.raises(IntakeError) as caught:
        pods(row)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("n,1,1,1000000000000,T4", "nodes.csv:2: gpu is 1,000,000,000,000, above the limit of 1,024; correct it"),
        ("n,1,1,-8,T4", "nodes.csv:2: gpu is -8, below 0; "),
        ("n,1,1,8,", "nodes.csv:2: model is empty and gpu is 8; name the model of the GPUs"),
        ("n,1,1,8,nan", "nodes.csv:2: model is empty and gpu is 8; "),
        ("n,1,1,8,T 4", "nodes.csv:2: gpu_model is 'T 4': String should match pattern"),
        ("n,1,1,0,\nn,1,1,0,", "nodes.csv:3: sn 'n' is already in line 2; "),
    ],
)
def test_a_wrong_node_is_named_with_its_place(row: str, sentence: str) -> None:
    with pytest.raises(IntakeError) as caught:
        nodes(row)
    assert str(caught.value).startswith(sentence)


def test_arrivals_just_reach_the_load_from_either_side(data_dir: Path) -> None:
    capacity = openb.capacity_milli(read_nodes(data_dir / NODES))
    for percent in (30, 100, 130):
        found = openb.arrivals(read_pods(data_dir / DEFAULT), capacity, percent=percent, seed=4)
        loads = [gpus_milli(job.spec) for job in found]
        assert 0 <= sum(loads) * 100 - capacity * percent < 8_000 * 100
        assert len({job.spec.name for job in found}) == len(found)
        assert [job.arrival_ms for job in found] == [1_000 * index for index in range(len(found))]
        assert {(job.runtime_ms, job.spec.wait_limit_ms) for job in found} == {(None, 0)}


def test_a_list_that_is_too_small_keeps_every_pod_and_names_the_copies(data_dir: Path) -> None:
    listed = read_pods(data_dir / DEFAULT)
    found = openb.arrivals(listed, 6_212_000, percent=130, seed=0)
    names = {job.spec.name for job in found}
    assert {job.spec.name for job in listed} < names
    assert all("-r" in name for name in names - {job.spec.name for job in listed})


def test_the_seed_fixes_the_arrivals(data_dir: Path) -> None:
    listed = read_pods(data_dir / DEFAULT)

    def names(seed: int) -> list[str]:
        return [job.spec.name for job in openb.arrivals(listed, 6_212_000, percent=130, seed=seed)]

    assert names(0) == names(0)
    assert names(0) != names(1)
    # Written down, so that another Python or machine that draws otherwise is noticed.
    assert names(0)[:3] == FIRST_OF_SEED_0


FIRST_OF_SEED_0 = ["openb-pod-6829", "openb-pod-3958", "openb-pod-0299-r2"]


def test_a_load_that_is_met_exactly_is_not_exceeded() -> None:
    listed = pods(*(f"p{n},1,1,1,1000,,,,,," for n in range(5)))
    assert [len(openb.arrivals(listed, n * MILLI, percent=100, seed=1)) for n in (1, 3, 5, 8)] == [1, 3, 5, 8]


def test_copies_never_take_a_name_that_is_there() -> None:
    listed = pods("p,1,1,1,1000,,,,,,", "p-r1,1,1,1,1000,,,,,,")
    found = openb.arrivals(listed, 10 * MILLI, percent=100, seed=1)
    assert len({job.spec.name for job in found}) == len(found) == 10


def test_pods_without_gpus_fill_nothing() -> None:
    with pytest.raises(IntakeError, match=r"^the list of pods: no pod asks for a GPU"):
        openb.arrivals(pods("p,1,1,0,0,,,,,,"), 1_000, percent=100, seed=1)


def test_nodes_without_gpus_cannot_be_filled() -> None:
    with pytest.raises(IntakeError, match=r"^x\.csv: the nodes to be filled have no GPUs; "):
        openb.arrivals(pods("p,1,1,1,1000,,,,,,"), 0, percent=100, seed=1, file="x.csv")


_cells = st.tuples(
    st.integers(0, 2**53 - 1), st.integers(0, 2**33 - 1), st.integers(2, 1_024), st.lists(st.sampled_from("abc"))
)


@given(st.lists(_cells, min_size=1, max_size=8))
def test_what_is_written_is_read(rows: list[tuple[int, int, int, list[str]]]) -> None:
    text = [f"p{i},{c},{m},{g},1000,{'|'.join(models)},,,,," for i, (c, m, g, models) in enumerate(rows)]
    found = [job.spec.roles[0] for job in pods(*text)]
    assert [(r.cpu_milli, r.memory_bytes >> 20, r.gpus, list(r.gpu_models)) for r in found] == [
        (c, m, g, list(dict.fromkeys(models))) for c, m, g, models in rows
    ]


def test_compressed_and_plain_are_the_same(tmp_path: Path) -> None:
    text = (HEAD + "p,1,1,1,1000,,,,,,\n").encode()
    (tmp_path / "p.csv").write_bytes(text)
    (tmp_path / "p.csv.gz").write_bytes(gzip.compress(text))
    assert openb.read_pods(tmp_path / "p.csv") == openb.read_pods(tmp_path / "p.csv.gz")
