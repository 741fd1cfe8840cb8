"""The official Python client, unchanged, through the life of some objects.

Usage: lifecycle.py KUBECONFIG
Ends with the line "all done"; anything unexpected is an exception.
"""
import datetime
import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

NAMESPACE = "python"


def refused(code, reason, call, *args, **kwargs):
    """The call must fail with this code and reason."""
    import json
    try:
        call(*args, **kwargs)
    except ApiException as error:
        status = json.loads(error.body)
        assert error.status == code, (error.status, error.body)
        assert status["reason"] == reason, status
        return status
    raise AssertionError(f"{call.__name__} was not refused")


def discovery(api):
    version = client.VersionApi(api).get_code()
    assert version.git_version.startswith("v1."), version
    names = {group.name for group in client.ApisApi(api).get_api_versions().groups}
    assert {"storage.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io"} <= names, names
    plurals = {resource.name for resource in client.CoreV1Api(api).get_api_resources().resources}
    assert {"persistentvolumeclaims", "pods", "pods/status"} <= plurals, plurals


def claim(name, size="1Gi"):
    return client.V1PersistentVolumeClaim(
        metadata=client.V1ObjectMeta(name=name, labels={"app": "demo"}),
        spec=client.V1PersistentVolumeClaimSpec(
            access_modes=["ReadWriteOnce"],
            storage_class_name="slow",
            resources=client.V1VolumeResourceRequirements(requests={"storage": size}),
        ),
    )


def claims(core):
    """Create, read, list in pages, patch, replace, conflict, delete."""
    made = core.create_namespaced_persistent_volume_claim(NAMESPACE, claim("data-0"))
    assert made.metadata.uid and made.status.phase == "Pending", made
    for number in range(1, 5):
        core.create_namespaced_persistent_volume_claim(NAMESPACE, claim(f"data-{number}"))
    refused(409, "AlreadyExists", core.create_namespaced_persistent_volume_claim, NAMESPACE, claim("data-0"))
    refused(422, "Invalid", core.create_namespaced_persistent_volume_claim, NAMESPACE, claim("Bad_Name"))
    refused(404, "NotFound", core.read_namespaced_persistent_volume_claim, "none", NAMESPACE)

    found, token = [], None
    while True:
        page = core.list_namespaced_persistent_volume_claim(NAMESPACE, limit=2, _continue=token)
        found += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert found == [f"data-{number}" for number in range(5)], found
    chosen = core.list_persistent_volume_claim_for_all_namespaces(
        label_selector="app in (demo)", field_selector="metadata.name=data-3")
    assert [item.metadata.name for item in chosen.items] == ["data-3"], chosen

    patched = core.patch_namespaced_persistent_volume_claim(
        "data-0", NAMESPACE, {"metadata": {"labels": {"more": "yes"}}})
    assert patched.metadata.labels == {"app": "demo", "more": "yes"}, patched.metadata
    patched = core.patch_namespaced_persistent_volume_claim(
        "data-0", NAMESPACE, [{"op": "remove", "path": "/metadata/labels/more"}])
    assert patched.metadata.labels == {"app": "demo"}, patched.metadata
    stale = core.read_namespaced_persistent_volume_claim("data-0", NAMESPACE)
    stale.metadata.annotations = {"seen": "1"}
    core.replace_namespaced_persistent_volume_claim("data-0", NAMESPACE, stale)
    refused(409, "Conflict", core.replace_namespaced_persistent_volume_claim, "data-0", NAMESPACE, stale)
    stale.status.phase = "Lost"
    stale.metadata.resource_version = None
    lost = core.patch_namespaced_persistent_volume_claim_status("data-0", NAMESPACE, {"status": {"phase": "Lost"}})
    assert lost.status.phase == "Lost", lost.status

    core.delete_collection_namespaced_persistent_volume_claim(NAMESPACE, label_selector="app=demo")
    for item in core.list_namespaced_persistent_volume_claim(NAMESPACE).items:
        # Nobody takes the finalizer off here but us.
        assert item.metadata.deletion_timestamp, item.metadata
        core.patch_namespaced_persistent_volume_claim(
            item.metadata.name, NAMESPACE, {"metadata": {"finalizers": None}})
    assert core.list_namespaced_persistent_volume_claim(NAMESPACE).items == []


def watches(core):
    """A watch sees what happens, in order, and goes on where it was."""
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    seen, watcher = [], watch.Watch()

    def follow():
        stream = watcher.stream(core.list_namespaced_config_map, NAMESPACE,
                                resource_version=start, timeout_seconds=60)
        for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                watcher.stop()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    core.create_namespaced_config_map(
        NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="settings"), data={"a": "1"}))
    core.patch_namespaced_config_map("settings", NAMESPACE, {"data": {"a": "2"}})
    gone = core.delete_namespaced_config_map("settings", NAMESPACE, propagation_policy="Background")
    assert (gone if isinstance(gone, dict) else gone.to_dict())["status"] == "Success", gone
    thread.join(60)
    assert not thread.is_alive(), seen
    assert seen == [(kind, "settings") for kind in ("ADDED", "MODIFIED", "DELETED")], seen
    # From too far back: the client gets its 410 and says so.
    try:
        for _ in watch.Watch().stream(core.list_namespaced_config_map, NAMESPACE,
                                      resource_version="1", timeout_seconds=60):
            raise AssertionError("that version is long gone")
    except ApiException as error:
        assert error.status == 410, error


def custom(api):
    """A definition, objects of it, and the dynamic client with server-side apply."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "boats", "singular": "boat", "kind": "Boat"},
            "versions": [{
                "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "length": {"type": "integer", "minimum": 1}, "flag": {"type": "string"}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                }}},
            }],
        },
    }
    extensions = client.ApiextensionsV1Api(api)
    extensions.create_custom_resource_definition(definition)
    for event in watch.Watch().stream(extensions.list_custom_resource_definition,
                                      field_selector="metadata.name=boats.example.com", timeout_seconds=60):
        conditions = event["object"].status and event["object"].status.conditions or []
        if any(c.type == "Established" and c.status == "True" for c in conditions):
            break
    boats = client.CustomObjectsApi(api)
    boat = {"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "tug"}, "spec": {"length": 20}}
    where = ("example.com", "v1", NAMESPACE, "boats")
    boats.create_namespaced_custom_object(*where, boat)
    bad = dict(boat, metadata={"name": "nil"}, spec={"length": 0})
    status = refused(422, "Invalid", boats.create_namespaced_custom_object, *where, bad)
    assert status["details"]["causes"][0]["field"] == "spec.length", status
    boats.patch_namespaced_custom_object_status(*where, "tug", {"status": {"afloat": True}})
    got = boats.get_namespaced_custom_object(*where, "tug")
    assert got["status"] == {"afloat": True} and got["spec"] == {"length": 20}, got

    found = dynamic.DynamicClient(api).resources.get(api_version="example.com/v1", kind="Boat")
    applied = found.server_side_apply(
        body=dict(boat, spec={"flag": "blue"}), namespace=NAMESPACE, field_manager="painter")
    assert applied.spec.flag == "blue" and applied.spec.length == 20, applied
    status = refused(
        409, "Conflict", found.server_side_apply,
        body=dict(boat, spec={"flag": "red"}), namespace=NAMESPACE, field_manager="other")
    assert status["details"]["causes"][0]["reason"] == "FieldManagerConflict", status
    boats.delete_namespaced_custom_object(*where, "tug")
    extensions.delete_custom_resource_definition("boats.example.com")


def others(api, core):
    """Secrets, times with six digits, tokens and reviews."""
    secret = core.create_namespaced_secret(
        NAMESPACE, client.V1Secret(metadata=client.V1ObjectMeta(generate_name="s-"), string_data={"k": "v"}))
    assert secret.metadata.name.startswith("s-") and secret.data == {"k": "dg=="}, secret
    leases = client.CoordinationV1Api(api)
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc)
    leases.create_namespaced_lease(NAMESPACE, client.V1Lease(
        metadata=client.V1ObjectMeta(name="l"), spec=client.V1LeaseSpec(holder_identity="me", renew_time=now)))
    assert leases.read_namespaced_lease("l", NAMESPACE).spec.renew_time == now
    core.create_namespaced_service_account(
        NAMESPACE, client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="bot")))
    token = core.create_namespaced_service_account_token("bot", NAMESPACE, client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=["https://kubernetes.default"], expiration_seconds=600)))
    settings = client.Configuration.get_default_copy()
    settings.cert_file = settings.key_file = None
    settings.api_key = {"authorization": "Bearer " + token.status.token}
    bot = client.ApiClient(settings)
    me = client.AuthenticationV1Api(bot).create_self_subject_review(client.V1SelfSubjectReview())
    assert me.status.user_info.username == f"system:serviceaccount:{NAMESPACE}:bot", me
    refused(403, "Forbidden", client.CoreV1Api(bot).list_namespaced_secret, NAMESPACE)


def main():
    config.load_kube_config(config_file=sys.argv[1])
    api = client.ApiClient()
    core = client.CoreV1Api(api)
    discovery(api)
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    for part in (claims, watches):
        part(core)
    custom(api)
    others(api, core)
    core.delete_namespace(NAMESPACE)
    print("all done")


if __name__ == "__main__":
    main()
