"""Fields that the server sets before it stores an object."""

from tapestry.kube.objects import Object

from ..conftest import ServerClient

CORE = "/api/v1/namespaces/default"


async def test_secret_string_data_is_encoded(call: ServerClient) -> None:
    path = f"{CORE}/secrets"
    secret = await call.made(path, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    assert secret["data"] == {"k": "dg=="}
    assert secret["type"] == "Opaque"
    assert "stringData" not in secret


async def test_job_selects_pods_by_its_uid(call: ServerClient) -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    body = {"metadata": {"name": "j"}, "spec": {"template": template}}
    job = await call.made("/apis/batch/v1/namespaces/default/jobs", body)
    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": uid}
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert (labels["batch.kubernetes.io/job-name"], labels["controller-uid"]) == ("j", uid)
    assert job["metadata"]["labels"] == labels


async def test_daemon_set_counts_changes_of_its_template(call: ServerClient) -> None:
    path, labels = "/apis/apps/v1/namespaces/default/daemonsets", {"app": "x"}

    def body(image: str) -> Object:
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}
        return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}

    sets = [await call.made(path, body("a")), *[(await call("PUT", f"{path}/d", body(each)))[1] for each in "abb"]]
    counts = [each["metadata"]["annotations"]["deprecated.daemonset.template.generation"] for each in sets]
    assert counts == ["1", "1", "2", "2"]


async def test_pod_with_gates_waits_for_scheduling(call: ServerClient) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "g"}]}
    pod = await call.made(f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": spec})
    [condition] = pod["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    assert condition["lastTransitionTime"] == pod["metadata"]["creationTimestamp"]
