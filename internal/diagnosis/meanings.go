package diagnosis

import (
	"strings"

	"belay.dev/belay/internal/drivers"
)

// meanings are what a text means that does not say it to a reader who does not know the program. They stand before the text. The guides have steps
// for each of a call that is not for the creation of a volume.
var meanings = map[drivers.Situation]string{
	drivers.DeviceMissing:   "the volume's device does not appear on node {node}",
	drivers.DeviceBusy:      "something else on node {node} holds the volume's device, such as multipathd, LVM or a mount that was left",
	drivers.MountBusy:       "another mount of the share on node {node} is in the way",
	drivers.ReadOnly:        "the volume's device, or a directory of node {node} that the driver writes to, is read-only",
	drivers.VolumeError:     "the storage has the volume in an error state, which no retry ends",
	drivers.NotReady:        "the storage has not made the volume ready for node {node}",
	drivers.StaleMount:      "a mount of the volume on node {node} is dead, since what served it has ended or the server has dropped it",
	drivers.NoSpace:         "a file system that the mount writes to on node {node} is full",
	drivers.OpenFiles:       "a limit of open files, or of inotify, is reached on node {node}",
	drivers.NFSVersion:      "the server or the node does not have the NFS version that the mount asks for",
	drivers.Blocklisted:     "Ceph has node {node} on its blocklist",
	drivers.ImageInUse:      "another client has the image open",
	drivers.SourceMissing:   "the SecretProviderClass {what} does not exist",
	drivers.ProviderMissing: `the provider "{what}" of the Secrets Store driver does not run on node {node}`,
	drivers.ModuleMissing:   "the kernel of node {node} lacks the module {what}, or the driver cannot load it",
	drivers.DaemonMissing:   "the daemon {what} does not run on node {node}",
	drivers.HostProgram:     "the program {what} is not installed on node {node}",
	drivers.DriverProgram:   "the image of the driver lacks the program {what}",
	drivers.Passphrase:      "the passphrase of the encrypted volume is missing or wrong",
	drivers.TokenMissing:    "the driver got no service account token of the pod for the audience that it needs",
	drivers.DeviceName:      "the machine has another device under the name that the driver chose",
	drivers.KeyUnusable:     "the storage cannot use the key of the encrypted volume",
	drivers.NoCredentials:   "the driver finds no credentials of its own",
	drivers.Unreachable:     "the driver does not reach the interface of the storage",
	drivers.Certificate:     "the driver does not trust the certificate of the storage",
	drivers.Vanished:        "EC2 deleted the volume right after its creation, as it does if the driver's role may not use the key",
	drivers.Repeated:        "an earlier attempt for this claim had other parameters, or EC2 deleted its volume",
	drivers.ExportDenied:    "the file server does not let the provisioner write",
}

// means adds what the answer of a driver means, if its text does not say that.
func (x *state) means(w *wait, read drivers.Reading, node string) {
	means := meanings[read.Situation]
	if means == "" {
		return
	}
	w.answer.Said, w.answer.What = string(read.Situation), x.foreign(read.What)
	if read.Situation == drivers.DaemonMissing && read.What == "" {
		w.answer.What = "iscsid"
	}
	means = strings.NewReplacer("{node}", x.foreign(node), "{what}", w.answer.What).Replace(means)
	w.detail = means + ": " + w.detail
}
