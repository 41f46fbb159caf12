"""sbatch scripts: layouts, units, arrays, and every option either read, ignored as the program's, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake.manifests.reading import read_manifest
from controlplane.intake.manifests.submission import Context, Submission

CONTEXT = Context(queue="q", user="ada", gpu_models={"a100": "A100"})


def read(*options: str, context: Context = CONTEXT) -> Submission:
    lines = [f"#SBATCH {option}" for option in options]
    return read_manifest("train.sh", "\n".join(["#!/bin/bash", *lines, "srun python train.py"]), context)


def one(*options: str) -> JobSpec:
    submission = read(*options)
    assert [str(refusal) for refusal in submission.refusals] == []
    (job,) = submission.jobs
    return job


def role(*options: str) -> Role:
    (found,) = one(*options).roles
    return found


def refusal(*options: str, context: Context = CONTEXT) -> str:
    submission = read(*options, context=context)
    assert submission.jobs == ()
    (error,) = submission.refusals
    return str(error)


def test_a_script_in_full() -> None:
    job = one(
        "-J llm",
        "--partition=a100",
        "-N 2",
        "--gres=gpu:a100:8",
        "-c 16",
        "--mem 64G",
        "-t 1-2:30",
        "-A phys",
        "--qos=high",
    )
    (found,) = job.roles
    assert (job.name, job.queue, job.user, job.labels) == ("llm", "a100", "ada", {"account": "phys", "qos": "high"})
    assert job.estimate_ms == (26 * 60 + 30) * 60_000
    assert (found.count, found.cpu_milli, found.memory_bytes, found.gpus) == (2, 16_000, 64 * 2**30, 8)
    assert found.gpu_models == ("A100",)


def test_without_options_a_job_is_one_cpu_named_after_its_script() -> None:
    job = one()
    assert (job.name, job.queue, job.members, job.roles[0].cpu_milli, job.max_attempts) == (
        "train.sh",
        "q",
        1,
        1_000,
        3,
    )
    assert one("--no-requeue").max_attempts == 1


def test_the_first_command_ends_the_options() -> None:
    text = "#!/bin/sh\n# a comment\n\n#SBATCH -n 2\necho\n#SBATCH -n 9\n"
    assert read_manifest("s.sh", text, CONTEXT).jobs[0].members == 2


def test_quotes_and_comments_are_left_out_and_the_last_of_an_option_counts() -> None:
    job = one("--job-name='my job' # why not".replace(" job", "-job"), '--ntasks="3"', "-n4")
    assert (job.name, job.members) == ("my-job", 4)


@pytest.mark.parametrize(
    ("options", "members", "cpus", "gpus"),
    [
        (["-n 6"], 6, 1, 0),
        (["-n 6", "-c 4"], 6, 4, 0),
        (["-N 3"], 3, 1, 0),
        (["-N 3", "-n 6"], 3, 2, 0),
        (["-N 3", "-n 7"], 3, 3, 0),
        (["-N 2-2", "--ntasks-per-node=4", "-c 2"], 2, 8, 0),
        (["-n 6", "--ntasks-per-node=4"], 2, 4, 0),
        (["--ntasks-per-node=4"], 1, 4, 0),
        (["-N 2", "-G 8"], 2, 1, 4),
        (["-n 4", "--gpus=a100:4"], 4, 1, 1),
        (["-N 2", "--gpus-per-node=3"], 2, 1, 3),
        (["-N 2", "--ntasks-per-node=4", "--gpus-per-task=2"], 2, 4, 8),
        (["--gres=gpu"], 1, 1, 1),
        (["--gres=gpu:3"], 1, 1, 3),
    ],
)
def test_layouts(options: list[str], members: int, cpus: int, gpus: int) -> None:
    found = role(*options)
    assert (found.count, found.cpu_milli, found.gpus) == (members, cpus * 1_000, gpus)


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        (["--mem=4000"], 4_000),
        (["--mem=2G"], 2_048),
        (["--mem=1T"], 2**20),
        (["--mem-per-cpu=100M", "-c 4"], 400),
        (["--mem-per-gpu=10g", "-G 2"], 20_480),
        (["-N 2", "--mem=1GB"], 1_024),
    ],
)
def test_memory(options: list[str], mib: int) -> None:
    assert role(*options).memory_bytes == mib * 2**20


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30", 1_800), ("1:30", 90), ("02:00:05", 7_205), ("2-12", 216_000), ("1-1:1", 90_060), ("1-0:0:9", 86_409)),
        *(("0", None), ("UNLIMITED", None)),
    ],
)
def test_time(text: str, seconds: int | None) -> None:
    assert one(f"--time={text}").estimate_ms == (None if seconds is None else seconds * 1_000)


@pytest.mark.parametrize(("array", "indices"), [("0-3", "0123"), ("1,4,2", "142"), ("0-8:4,1", "0481"), ("5", "5")])
def test_an_array_is_many_jobs(array: str, indices: str) -> None:
    jobs = read("-J a", f"--array={array}").jobs
    assert [job.name for job in jobs] == [f"a-{index}" for index in indices]


def test_licences_are_named_resources() -> None:
    assert role("-L matlab:2,ansys").other == {"matlab": 2, "ansys": 1}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--dependency=afterok:1"], "train.sh:2: '--dependency' is not supported; remove it"),
        (["-C gpu80"], "train.sh:2: '--constraint' is not supported; remove it"),
        (["--exclusive"], "train.sh:2: '--exclusive' is not supported; remove it"),
        (["-H"], "train.sh:2: '--hold' is not supported; remove it"),
        (["--gpu=2"], "train.sh:2: '--gpu' is not supported; remove it"),
        (["-N"], "train.sh:2: '--nodes' has no value; write --nodes=VALUE"),
        (["-N 2-4"], "train.sh:2: --nodes is a range ('2-4'); give one number of nodes"),
        (["-N 0"], "train.sh:2: --nodes is 0, below 1; "),
        (["-n -3"], "train.sh:2: --ntasks is -3, below 0; "),
        (["-n 1000000"], "train.sh:2: --ntasks is 1,000,000, above the limit of 100,000; "),
        (["--gres=fpga:1"], "train.sh:2: --gres is 'fpga:1'; write it as gpu:4 or gpu:a100:4; "),
        (["-G 8", "--gres=gpu:1"], "train.sh:3: --gres asks for GPUs, and so does --gpus; keep one of them"),
        (["-N 3", "-G 8"], "train.sh:3: --gpus is 8 for 3 members; make it a multiple, or use --gpus-per-node"),
        (["-n 4", "--gres=gpu:2"], "train.sh:3: --gres is for a node, but the number of nodes is open; give --nodes"),
        (
            ["-G 1000000000000"],
            "train.sh:2: --gpus asks for 1,000,000,000,000 GPUs in one member, above the limit of 1,024; ",
        ),
        (["--mem=lots"], "train.sh:2: --mem is 'lots'; write it as 4000M or 16G"),
        (["--mem=0"], "train.sh:2: --mem is 0, which asks for all memory of a node; give an amount"),
        (["--mem=9000000T"], "train.sh:2: --mem is above the limit of 2^53 bytes; "),
        (["--mem=1G", "--mem-per-cpu=1G"], "train.sh:3: --mem-per-cpu asks for memory, and so does --mem; "),
        (["-t soon"], "train.sh:2: --time is 'soon'; write it as minutes, "),
        (["--array=0-99999"], "train.sh:2: --array has more than 10,000 jobs; split it"),
        (["--array=0-9%2"], "train.sh:2: --array limits how many run at once (%), which is not supported; "),
        (["--array=9-0x"], "train.sh:2: --array is '9-0x'; write it as "),
        (["-p a,b"], "train.sh:2: --partition is a list ('a,b'); name one"),
        (["-N 2", "-L matlab"], "train.sh:3: --licenses are for the whole job, but it has several members; "),
        (["-J -x-"], "train.sh: name is '-x-': String should match pattern"),
    ],
)
def test_what_is_wrong_is_named(options: list[str], sentence: str) -> None:
    assert refusal(*options).startswith(sentence)


def test_all_refused_options_are_told_at_once() -> None:
    assert [error.line for error in read("--hold", "-n 2", "--begin=now").refusals] == [2, 4]


def test_a_script_without_a_partition_needs_a_queue() -> None:
    assert refusal(context=Context()).startswith("train.sh: the script names no --partition; set it, ")


@pytest.mark.parametrize("option", ["-o out", "--error=e", "--mail-type=END", "-D /data", "--export=ALL", "--wait"])
def test_what_is_the_programs_changes_nothing(option: str) -> None:
    assert one(option) == one()


_word = st.one_of(
    st.sampled_from(["-N", "-n", "-G", "--gres", "--mem", "-t", "--array", "-L", "-c", "--gpus-per-task", "--nodes=2"]),
    st.sampled_from(["=", "gpu:a100:2", "0-5", "1-1", "2", "%", "-", "--", "---", "''", "64G", "99999999999999999999"]),
    st.text(max_size=6),
)


@given(st.lists(st.lists(_word, max_size=5).map(" ".join), max_size=5))
def test_any_options_give_jobs_or_sentences(options: list[str]) -> None:
    found = read(*options)
    assert found.jobs or found.refusals
    assert all(str(error).startswith("train.sh") and "\n" not in str(error) for error in found.refusals)
