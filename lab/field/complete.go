package field

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"belay.dev/belay/internal/kube"
)

// kinds are the API objects of situations: the version of each, and whether it is in a namespace.
var kinds = map[string]struct {
	version    string
	namespaced bool
}{
	"Node": {"v1", false}, "Pod": {"v1", true}, "PersistentVolume": {"v1", false}, "PersistentVolumeClaim": {"v1", true}, "Event": {"v1", true},
	"StorageClass": {"storage.k8s.io/v1", false}, "CSIDriver": {"storage.k8s.io/v1", false}, "CSINode": {"storage.k8s.io/v1", false},
	"VolumeAttachment": {"storage.k8s.io/v1", false}, "CSIStorageCapacity": {"storage.k8s.io/v1", true}, "Lease": {"coordination.k8s.io/v1", true},
	"Deployment": {"apps/v1", true}, "ReplicaSet": {"apps/v1", true},
}

// tokenVolume is the volume with the service account's token that every pod gets.
const tokenVolume = "kube-api-access-x7k2p"

// complete adds what objects of a kind have in common.
func (s *Situation) complete(o object) object {
	kind := text(o, "kind")
	if ref, ok := o["ref"].(object); ok {
		if kinds[text(ref, "kind")].namespaced {
			set(o, s.Namespace(), "ref", "namespace")
		}
		if name := text(ref, "name"); strings.HasPrefix(name, "auto:") {
			ref["name"] = attachmentName(name)
		}
		return o
	}
	k, known := kinds[kind]
	if !known {
		return o // what a maker does
	}
	o["apiVersion"] = k.version
	if k.namespaced {
		set(o, s.Namespace(), "metadata", "namespace")
	}
	switch kind {
	case "Pod":
		completePod(o)
	case "PersistentVolume":
		completeVolume(o, s.Namespace())
	case "PersistentVolumeClaim":
		set(o, "10Gi", "spec", "resources", "requests", "storage")
		set(o, []any{"ReadWriteOnce"}, "spec", "accessModes")
	case "VolumeAttachment":
		completeAttachment(o)
	case "Node":
		completeNode(o)
	case "CSINode":
		completeCSINode(o)
	case "CSIDriver":
		set(o, "File", "spec", "fsGroupPolicy")
	}
	return o
}

// set sets a field that is not there.
func set(o object, value any, path ...string) {
	if _, found, _ := unstructured.NestedFieldNoCopy(o, path...); !found {
		if err := unstructured.SetNestedField(o, value, path...); err != nil {
			panic(fmt.Sprintf("%v: %v", path, err)) // a situation is part of this program
		}
	}
}

// text is a field, empty if it is not there.
func text(o object, path ...string) string {
	value, _, _ := unstructured.NestedString(o, path...)
	return value
}

// completePod adds the volume with the token, a container that mounts all volumes, and the status that "is", "for" and "waiting" describe.
func completePod(o object) {
	set(o, map[string]any{"app": text(o, "metadata", "name")}, "metadata", "labels")
	volumes, _, _ := unstructured.NestedSlice(o, "spec", "volumes")
	var mounts []any
	for _, v := range volumes {
		name := text(v.(object), "name")
		mounts = append(mounts, object{"name": name, "mountPath": "/v/" + name})
	}
	token := object{"serviceAccountToken": object{"path": "token", "expirationSeconds": int64(3607)}}
	root := object{"configMap": object{"name": "kube-root-ca.crt", "items": []any{object{"key": "ca.crt", "path": "ca.crt"}}}}
	volumes = append(volumes, object{"name": tokenVolume, "projected": object{"sources": []any{token, root}}})
	set(o, []any{object{"name": "app", "volumeMounts": mounts}}, "spec", "containers")
	containers, _, _ := unstructured.NestedSlice(o, "spec", "containers")
	for _, c := range containers {
		c := c.(object)
		set(c, "registry.k8s.io/pause:3.10", "image")
		mounts, _ := c["volumeMounts"].([]any)
		c["volumeMounts"] = append(mounts, object{"name": tokenVolume, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true})
	}
	spec := o["spec"].(object)
	spec["volumes"], spec["containers"] = volumes, containers
	set(o, int64(30), "spec", "terminationGracePeriodSeconds")
	if status := podStatus(o); status != nil {
		o["status"] = status
	}
	for _, shorthand := range []string{"is", "for", "waiting"} {
		delete(o, shorthand)
	}
}

// podStatus is what kubelet writes of a pod whose containers are all alike, nil for a pod that has no node.
func podStatus(o object) object {
	is, age := text(o, "is"), "ago:1800"
	waiting, waits := o["waiting"].(object)
	ready, sandbox, phase := "False", "True", "Pending"
	var state object
	switch {
	case waits:
		state = object{"waiting": waiting}
	case is == "creating":
		sandbox, state = "False", object{"waiting": object{"reason": "ContainerCreating"}}
	case is == "running":
		age, ready, phase = "ago:86400", "True", "Running"
	case is == "ended", is == "succeeded":
		phase, state = "Running", object{"terminated": object{"exitCode": int64(0), "reason": "Completed", "finishedAt": "ago:3600"}}
	default:
		return nil
	}
	if given, ok := o["for"]; ok {
		age = fmt.Sprintf("ago:%v", given)
	}
	if is == "running" {
		state = object{"running": object{"startedAt": age}}
	}
	if is == "succeeded" {
		phase = "Succeeded"
	}
	condition := func(name, status string) object {
		c := object{"type": name, "status": status, "lastTransitionTime": age}
		if strings.HasSuffix(name, "Ready") && status == "False" {
			c["reason"], c["message"] = "ContainersNotReady", "containers with unready status: [app]"
		}
		return c
	}
	containers, _, _ := unstructured.NestedSlice(o, "spec", "containers")
	var statuses []any
	for _, c := range containers {
		statuses = append(statuses, object{
			"name": c.(object)["name"], "image": c.(object)["image"], "imageID": "", "ready": ready == "True", "started": ready == "True",
			"restartCount": int64(0), "state": state,
		})
	}
	return object{
		"phase": phase, "startTime": age, "hostIP": "10.0.0.1",
		"conditions": []any{
			condition("PodReadyToStartContainers", sandbox), condition("Initialized", "True"), condition("Ready", ready),
			condition("ContainersReady", ready), condition("PodScheduled", "True"),
		},
		"containerStatuses": statuses,
	}
}

func completeVolume(o object, namespace string) {
	set(o, "10Gi", "spec", "capacity", "storage")
	set(o, []any{"ReadWriteOnce"}, "spec", "accessModes")
	set(o, "Delete", "spec", "persistentVolumeReclaimPolicy")
	if driver := text(o, "spec", "csi", "driver"); driver != "" {
		set(o, driver, "metadata", "annotations", "pv.kubernetes.io/provisioned-by")
		set(o, "ext4", "spec", "csi", "fsType")
	}
	if text(o, "spec", "claimRef", "name") != "" {
		set(o, "v1", "spec", "claimRef", "apiVersion")
		set(o, "PersistentVolumeClaim", "spec", "claimRef", "kind")
		set(o, namespace, "spec", "claimRef", "namespace")
	}
}

// completeAttachment adds what attach/detach controller and attacher write.
func completeAttachment(o object) {
	driver, node := text(o, "spec", "attacher"), text(o, "spec", "nodeName")
	handle := strings.TrimPrefix(text(o, "metadata", "name"), "auto:")
	set(o, []any{"external-attacher/" + strings.ReplaceAll(driver, ".", "-")}, "metadata", "finalizers")
	set(o, nodeID(node), "metadata", "annotations", "csi.alpha.kubernetes.io/node-id")
	o["metadata"].(object)["name"] = kube.AttachmentName(handle, driver, node)
}

// nodeID is what all drivers call a node.
func nodeID(node string) string { return "i-0" + node }

// completeNode makes a node in a zone, which has been lost for as many seconds as "lost" says.
func completeNode(o object) {
	name, zone := text(o, "metadata", "name"), text(o, "zone")
	condition := object{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status", "lastTransitionTime": "ago:864000", "lastHeartbeatTime": "ago:0"}
	spec := object{"providerID": "aws:///" + zone + "/" + nodeID(name)}
	if lost, ok := o["lost"]; ok {
		since := fmt.Sprintf("ago:%v", lost)
		condition = object{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.", "lastTransitionTime": since, "lastHeartbeatTime": since}
		var taints []any
		for _, effect := range o["taints"].([]any) {
			taints = append(taints, object{"key": "node.kubernetes.io/unreachable", "effect": effect, "timeAdded": since})
		}
		spec["taints"] = taints
	}
	capacity := object{"cpu": "16", "memory": "64Gi", "pods": "250", "ephemeral-storage": "100Gi"}
	o["metadata"] = object{
		"name": name, "annotations": object{kube.ManagedAttachAnnotation: "true"},
		"labels": object{
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": zone,
			"topology.ebs.csi.aws.com/zone": zone, "topology.topolvm.io/node": name,
		},
	}
	o["spec"] = spec
	o["status"] = object{
		"capacity": capacity, "allocatable": capacity, "conditions": []any{condition},
		"nodeInfo": object{
			"machineID": name, "systemUUID": name, "bootID": "b-" + name, "kernelVersion": "6.8", "osImage": "Ubuntu 24.04",
			"containerRuntimeVersion": "containerd://2.0", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
		},
	}
	for _, shorthand := range []string{"zone", "lost", "taints"} {
		delete(o, shorthand)
	}
}

// completeCSINode makes the list of drivers, which is by name.
func completeCSINode(o object) {
	var drivers []any
	for name, of := range o["drivers"].(object) {
		driver := object{"name": name, "nodeID": nodeID(text(o, "metadata", "name")), "topologyKeys": of.(object)["topologyKeys"]}
		if count, ok := of.(object)["count"]; ok {
			driver["allocatable"] = object{"count": count}
		}
		drivers = append(drivers, driver)
	}
	delete(o, "drivers")
	o["spec"] = object{"drivers": drivers}
}
