"""Job manifests, kind by kind: what is read, what is noted, what is refused and how it is said."""

from __future__ import annotations

import textwrap

import pytest

from controlplane.domain.workloads import JobSpec
from controlplane.intake.manifests.reading import read_manifest
from controlplane.intake.manifests.submission import Context, Submission
from controlplane.intake.traces import IntakeError

POD = "containers: [{name: c, image: i, resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {nvidia.com/gpu: 2}}}]"


def read(text: str, context: Context | None = None) -> Submission:
    return read_manifest("f.yaml", textwrap.dedent(text), context or Context(queue="q", user="ada"))


def one(text: str) -> JobSpec:
    submission = read(text)
    assert [str(refusal) for refusal in submission.refusals] == []
    (job,) = submission.jobs
    return job


def refusals(text: str, context: Context | None = None) -> list[str]:
    return [str(refusal) for refusal in read(text, context).refusals]


def notes(text: str) -> list[str]:
    return [note.sentence() for note in read(text).notes]


def job(spec: str = "", metadata: str = "", pod: str = POD) -> str:
    return f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, {metadata}}}
spec:
  parallelism: 3
  {spec}
  template: {{spec: {{{pod}}}}}
"""


def test_a_job_in_full() -> None:
    found = one(job("activeDeadlineSeconds: 60\n  backoffLimit: 4", "labels: {team: vision}"))
    (role,) = found.roles
    assert (found.name, found.queue, found.user, found.labels) == ("train", "q", "ada", {"team": "vision"})
    assert (found.estimate_ms, found.max_attempts) == (60_000, 5)
    assert (role.count, role.cpu_milli, role.memory_bytes, role.gpus, role.gpu_models) == (3, 500, 2**30, 2, ())


def test_kueue_labels_name_queue_and_runtime() -> None:
    found = one(
        job("suspend: true", "labels: {kueue.x-k8s.io/queue-name: lq, kueue.x-k8s.io/max-exec-time-seconds: '9'}")
    )
    assert (found.queue, found.estimate_ms) == ("lq", 9_000)
    assert one(job("", "namespace: ml, labels: {kueue.x-k8s.io/queue-name: lq}")).queue == "ml/lq"


def test_a_generated_name_loses_its_dash() -> None:
    assert one(job("", "generateName: sample-job-").replace("name: train, ", "")).name == "sample-job"


def test_more_completions_than_parallelism_is_noted_and_fewer_shrink_the_gang() -> None:
    assert one(job("completions: 2")).members == 2
    assert notes(job("completions: 9")) == ["f.yaml:6: spec.completions is 9 with parallelism 3: 3 members are placed"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            job("paralelism: 2"),
            ["f.yaml:6: spec.paralelism is not a field that Tidegate knows; remove it, or correct its name"],
        ),
        (
            job("suspend: true"),
            ["f.yaml:6: spec.suspend is true, so that the job would wait for somebody's word; remove it"],
        ),
        (
            job().replace("parallelism: 3", "parallelism: 0"),
            ["f.yaml:5: spec.parallelism is 0, below 1; correct it"],
        ),
        (
            job().replace("parallelism: 3", "parallelism: -4"),
            ["f.yaml:5: spec.parallelism is -4, below 1; correct it"],
        ),
        (
            job().replace("parallelism: 3", "parallelism: 1000000"),
            ["f.yaml:5: spec.parallelism is 1,000,000, above the limit of 100,000; correct it"],
        ),
        (
            job(pod="nodeSelector: {disk: ssd}, schedulingGates: [{name: g}], " + POD),
            [
                "f.yaml:7: spec.template.spec.schedulingGates holds the pod back until somebody else releases it; ",
                "f.yaml:7: spec.template.spec.nodeSelector.disk asks for nodes by their labels, which a job cannot do ",
            ],
        ),
        (
            job(pod=POD.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 1000000000000")),
            ["f.yaml:7: spec.template.spec asks for 1,000,000,000,000 of nvidia.com/gpu, above the limit of 1,024 "],
        ),
        (
            job(pod=POD.replace("500m", "-1")),
            ["f.yaml:7: spec.template.spec.containers[0].resources.requests.cpu is '-1', not a quantity; write it "],
        ),
        (
            job(pod=POD.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 500m")),
            ["f.yaml:7: spec.template.spec.containers[0].resources.limits['nvidia.com/gpu'] is '500m', not a whole "],
        ),
        (job(pod="containers: []"), ["f.yaml:7: spec.template.spec has no containers; give at least one"]),
        (job(pod="containers: 7"), ["f.yaml:7: spec.template.spec.containers is '7', not a list; correct it"]),
        (
            job(pod="priorityClassName: high, " + POD),
            ["f.yaml:7: spec.template.spec.priorityClassName names the priority class 'high', whose value is not "],
        ),
        (job().replace("name: train", "name: -x"), ["f.yaml:1: name is '-x': String should match pattern"]),
        (job().replace("name: train, ", ""), ["f.yaml:3: metadata.name is missing; give it"]),
    ],
)
def test_what_is_wrong_is_named(text: str, sentences: list[str]) -> None:
    found = read(text)
    assert not found.jobs
    assert len(found.refusals) == len(sentences)
    for refusal, sentence in zip(found.refusals, sentences, strict=True):
        assert str(refusal).startswith(sentence)


def test_a_job_without_a_queue_is_refused_unless_one_is_given() -> None:
    (sentence,) = refusals(job(), Context())
    assert sentence == (
        "f.yaml:1: the document names no queue; set the label kueue.x-k8s.io/queue-name, or give the queue when "
        "submitting"
    )


def test_all_faults_of_a_file_are_told_at_once() -> None:
    text = job("managedBy: x") + "---\n" + job() + "---\n" + job("suspend: true")
    found = read(text)
    assert [refusal.line for refusal in found.refusals] == [6, 22]
    assert len(found.jobs) == 1


# --- pods ------------------------------------------------------------------------------------------------------------


def test_a_pod_is_scheduled_by_the_larger_of_its_phases() -> None:
    pod = """
      overhead: {cpu: 250m}
      initContainers:
      - {name: fetch, resources: {requests: {cpu: "3", memory: 1Gi}}}
      - {name: proxy, restartPolicy: Always, resources: {requests: {cpu: 100m}}}
      - {name: warm, resources: {requests: {cpu: "4"}}}
      containers:
      - {name: a, resources: {requests: {cpu: "1", memory: 2Gi}}}
      - {name: b, resources: {requests: {cpu: "1"}, limits: {cpu: "8", example.com/fpga: 2}}}
    """
    found = one(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:{pod}")
    (role,) = found.roles
    # While warming: 4 + 0.1 of the proxy; then 2.1; and the overhead on top of the larger.
    assert (role.cpu_milli, role.memory_bytes, role.other) == (4_350, 2**31, {"example.com/fpga": 2})


@pytest.mark.parametrize(
    ("placement", "models"),
    [
        ("nodeSelector: {nvidia.com/gpu.product: A100}", ("A100",)),
        ("nodeSelector: {kubernetes.io/os: linux}", ()),
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-tesla-t4}", ("T4",)),
        (
            (
                "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{"
                "matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [A100, H100]}]}]}}}"
            ),
            ("A100", "H100"),
        ),
    ],
)
def test_gpu_models_are_read_from_where_people_put_them(placement: str, models: tuple[str, ...]) -> None:
    context = Context(queue="q", gpu_models={"nvidia-tesla-t4": "T4"})
    (found,) = read(job(pod=f"{placement}, {POD}"), context).jobs
    assert found.roles[0].gpu_models == models


@pytest.mark.parametrize(
    ("placement", "field"),
    [
        ("nodeName: n1", "nodeName"),
        ("affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{}]}}", "podAntiAffinity"),
        (
            (
                "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{"
                "matchExpressions: [{key: nvidia.com/gpu.product, operator: NotIn, values: [A100]}]}]}}}"
            ),
            "nodeAffinity",
        ),
        ("topologySpreadConstraints: [{topologyKey: zone}]", "topologySpreadConstraints[0]"),
        ("resourceClaims: [{name: gpu}]", "resourceClaims"),
    ],
)
def test_a_demand_on_nodes_that_cannot_be_met_is_refused(placement: str, field: str) -> None:
    (sentence,) = refusals(job(pod=f"{placement}, {POD}"))
    assert field in sentence


def test_a_preference_is_noted() -> None:
    pod = f"affinity: {{podAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{{}}]}}}}, {POD}"
    (note,) = notes(job(pod=pod))
    assert note.endswith("preferredDuringSchedulingIgnoredDuringExecution is only a preference: left out")


# --- priorities ------------------------------------------------------------------------------------------------------

CLASS = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\nvalue: %d\n---\n"


def test_a_priority_class_may_stand_anywhere_in_the_file() -> None:
    pod = "priorityClassName: high, " + POD
    assert one(CLASS % ("high", 70) + job(pod=pod)).priority == 70
    assert one(job(pod=pod) + "---\n" + CLASS % ("high", -7)).priority == -7


def test_a_priority_class_may_be_known_from_elsewhere() -> None:
    (found,) = read(job("", "labels: {kueue.x-k8s.io/priority-class: p}"), Context(queue="q", priorities={"p": 5})).jobs
    assert found.priority == 5


def test_members_with_different_priorities_are_refused_and_both_are_named() -> None:
    text = (
        CLASS % ("high", 9)
        + CLASS % ("low", 1)
        + VOLCANO.replace("template: {spec: {", "template: {spec: {priorityClassName: high, ", 1)
    )
    text = text[::-1].replace("template: {spec: {"[::-1], "template: {spec: {priorityClassName: low, "[::-1], 1)[::-1]
    (sentence,) = refusals(text)
    assert "spec.tasks[1].template.spec.priorityClassName (low) gives another priority than" in sentence
    assert "spec.tasks[0].template.spec.priorityClassName (high, line " in sentence


# --- other kinds -----------------------------------------------------------------------------------------------------

VOLCANO = f"""\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: mpi}}
spec:
  minAvailable: 3
  queue: research
  maxRetry: 5
  tasks:
  - {{name: master, replicas: 1, template: {{spec: {{{POD}}}}}}}
  - {{name: worker, replicas: 2, template: {{spec: {{{POD}}}}}}}
"""


def test_volcano() -> None:
    found = one(VOLCANO)
    assert (found.queue, found.max_attempts) == ("research", 5)
    assert [(role.name, role.count) for role in found.roles] == [("master", 1), ("worker", 2)]
    assert read(VOLCANO.replace("  queue: research\n", ""), Context()).jobs[0].queue == "default"
    assert read(VOLCANO.replace("  queue: research\n", ""), Context(queue="own")).jobs[0].queue == "own"


def test_a_volcano_job_that_starts_with_less_is_noted() -> None:
    (note,) = notes(VOLCANO.replace("minAvailable: 3", "minAvailable: 2"))
    assert note == "f.yaml:5: spec.minAvailable is 2 of 3 members: all of them start together here"


def test_a_task_of_nobody_is_refused() -> None:
    (sentence,) = refusals(VOLCANO.replace("replicas: 2", "replicas: 0"))
    assert sentence.startswith("f.yaml:10: spec.tasks[1].replicas is 0, below 1; ")


def test_jobset() -> None:
    template = f"{{spec: {{parallelism: 4, completions: 4, activeDeadlineSeconds: 5, template: {{spec: {{{POD}}}}}}}}}"
    text = f"""\
    apiVersion: jobset.x-k8s.io/v1alpha2
    kind: JobSet
    metadata: {{name: js}}
    spec:
      failurePolicy: {{maxRestarts: 2}}
      replicatedJobs:
      - {{name: workers, replicas: 2, template: {template}}}
      - {{name: driver, template: {template.replace("4", "1")}}}
    """
    found = one(text)
    assert [(role.name, role.count) for role in found.roles] == [("workers", 8), ("driver", 1)]
    assert (found.max_attempts, found.estimate_ms) == (3, 5_000)


@pytest.mark.parametrize(
    ("kind", "specs"),
    [
        *(("PyTorchJob", "pytorchReplicaSpecs"), ("TFJob", "tfReplicaSpecs"), ("MPIJob", "mpiReplicaSpecs")),
        *(("XGBoostJob", "xgbReplicaSpecs"), ("PaddleJob", "paddleReplicaSpecs"), ("JAXJob", "jaxReplicaSpecs")),
    ],
)
def test_kubeflow(kind: str, specs: str) -> None:
    text = f"""\
    apiVersion: kubeflow.org/v1
    kind: {kind}
    metadata: {{name: k}}
    spec:
      runPolicy: {{schedulingPolicy: {{queue: vision, minAvailable: 3}}, backoffLimit: 1}}
      {specs}:
        Master: {{template: {{spec: {{{POD}}}}}}}
        Worker: {{replicas: 2, restartPolicy: Never, template: {{spec: {{{POD}}}}}}}
    """
    found = one(text)
    assert (found.queue, found.max_attempts) == ("vision", 2)
    assert [(role.name, role.count, role.gpus) for role in found.roles] == [("master", 1, 2), ("worker", 2, 2)]
    assert len(notes(text)) == 1


RAY = f"""\
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: r, labels: {{yunikorn.apache.org/queue: root.team}}}}
spec:
  rayClusterSpec:
    headGroupSpec: {{template: {{spec: {{{POD}}}}}}}
    workerGroupSpecs:
    - {{groupName: w, replicas: 2, numOfHosts: 4, template: {{spec: {{{POD}}}}}}}
    - {{groupName: idle, replicas: 0, template: {{spec: {{{POD}}}}}}}
"""


def test_ray() -> None:
    found = one(RAY)
    assert found.queue == "team"
    roles = [(role.name, role.count, role.cpu_milli) for role in found.roles]
    assert roles == [("head", 1, 500), ("w", 8, 500), ("submitter", 1, 500)]
    assert notes(RAY) == [
        "f.yaml:9: spec.rayClusterSpec.workerGroupSpecs[1] starts without workers: left out, since a job keeps its size"
    ]


def test_a_ray_job_that_submits_itself_has_no_pod_for_it() -> None:
    text = RAY.replace("  rayClusterSpec:", "  submissionMode: HTTPMode\n  rayClusterSpec:")
    assert [role.name for role in one(text).roles] == ["head", "w"]


def test_a_ray_job_on_somebody_elses_cluster_is_refused() -> None:
    (sentence,) = refusals(
        "{apiVersion: ray.io/v1, kind: RayJob, metadata: {name: r}, spec: {clusterSelector: {a: b}}}"
    )
    assert "spec.clusterSelector runs the job on a Ray cluster that is there already" in sentence


# --- files -----------------------------------------------------------------------------------------------------------


def test_services_are_refused_with_their_reason_and_supporting_objects_are_noted() -> None:
    text = "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: ConfigMap\n---\n" + job()
    found = read(text)
    assert [str(refusal) for refusal in found.refusals] == [
        (
            "f.yaml:2: kind 'Deployment' of apps never ends by itself, so it is no job; remove the document, or write "
            "its work as a job"
        )
    ]
    assert [note.sentence() for note in found.notes] == [
        "f.yaml:5: kind ConfigMap is not submitted: give it to the cluster"
    ]
    assert len(found.jobs) == 1


def test_a_list_is_its_items() -> None:
    item = textwrap.indent(job(), "  ").replace("  apiVersion", "- apiVersion", 1)
    assert len(read(f"apiVersion: v1\nkind: List\nitems:\n{item}{item}").jobs) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f.yaml: the file holds no documents; give a job or a queue"),
        ("---\n---\n", "f.yaml: the file holds no documents; "),
        (
            "apiVersion: v1\nkind: Secret\n",
            "f.yaml: the file holds only Secret; give a job or a queue",
        ),
        ("- a\n", "f.yaml:1: the document is not a mapping; give objects with apiVersion and kind"),
        ("kind: Job\n", "f.yaml:1: apiVersion is missing; give it"),
        ("a: b: c\n", "f.yaml:1: not YAML (mapping values are not allowed here); correct it"),
        ("a: [\n", "f.yaml:2: not YAML ("),
        ("a: \x00\n", "f.yaml: not YAML (characters that YAML does not allow); correct it"),
        ("[" * 800, "f.yaml: the YAML is nested too deep; flatten it"),
        ("a: " + "x" * 2**20, "f.yaml: the file is longer than 1,048,576 characters; split it"),
    ],
)
def test_what_cannot_be_taken_apart_is_named(text: str, sentence: str) -> None:
    with pytest.raises(IntakeError) as caught:
        read_manifest("f.yaml", text)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (job("suspend: yep"), "f.yaml:6: spec.suspend is 'yep', not true or false; correct it"),
        (job("template: {}"), "f.yaml:7: spec.template is there twice; keep one of them"),
        (job().replace("metadata: {name: train, }", "metadata: [a]"), "f.yaml:3: metadata is a list, not a mapping; "),
        (job(pod="<<: {a: b}, " + POD), "f.yaml:7: spec.template.spec has a key that is no name; write the fields out"),
    ],
)
def test_a_wrong_form_is_named(text: str, sentence: str) -> None:
    assert refusals(text)[0].startswith(sentence)


def test_aliases_are_read_but_a_bomb_of_them_does_not_explode() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=False)
    )
    assert len(refusals(bomb + job())) == 0
    loop = job().replace("containers: [", "volumes: &v [*v], containers: [")
    assert len(read(loop).jobs) == 1
