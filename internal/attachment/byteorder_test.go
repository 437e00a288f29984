package attachment

import "testing"

// A VM's hardware is upgraded while it is off. Then Linux prints the system UUID in the other byte order, because the SMBIOS version is another
// (charmed-kubernetes/charm-kubernetes-control-plane#102 has both forms of one VM; candlepin/virt-who#415 converts after such an upgrade), and kubelet
// takes it from there (k8s.io/kubernetes v1.36.3 pkg/kubelet/nodestatus/setters.go:229; google/cadvisor v0.56.2 utils/sysfs/sysfs.go:449
// product_uuid). The Node object, its provider ID and its machine are the same, the boot is another, and its kubelet lists nothing: the volume is
// free. kube-controller-manager detaches at once (v1.36.3 pkg/controller/volume/attachdetach/reconciler/reconciler.go:240); belay waits for the
// timeout, forever without one. One string in two byte orders does not say that another machine has come.
func TestSystemUUIDInTheOtherByteOrderIsNoOtherMachine(t *testing.T) {
	const before, after = "422813f5-d420-7161-5db0-7b96440ccf54", "f5132842-20d4-6171-5db0-7b96440ccf54"
	for name, uuid := range map[string]string{"as before": before, "in the other byte order": after} {
		t.Run(name, func(t *testing.T) {
			provider := "vsphere://" + before
			a := attached("a", waiting)
			a.Machine.SystemUUID, a.Machine.ProviderID = before, provider
			n := node("a", rebooted, healthy, checked)
			n.Machine.SystemUUID, n.Machine.ProviderID = uuid, provider
			if d := Decide(t0, Desired{}, onA(a, n), Policy{}); !releases(d.Steps) {
				t.Errorf("not detached: %v", d.Steps)
			}
			if d := Decide(t0, wantAt("a"), onA(attached("a", func(b *Attachment) { b.Machine = a.Machine }), n), Policy{}); d.Reason == NodeReplaced {
				t.Errorf("its own pods wait: %v", d.Steps)
			}
		})
	}
}
