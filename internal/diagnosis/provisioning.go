package diagnosis

import (
	"cmp"
	"regexp"
	"strings"

	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
)

// provisionFailed is what stands before the error of a provisioner (sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:1497; in-tree: k/k
// v1.36.3 pkg/controller/volume/persistentvolume/pv_controller.go:1707).
var provisionFailed = regexp.MustCompile(`^[Ff]ailed to provision volume with StorageClass "[^"]*": `)

// driverCode matches the answer of a driver, whose text is its own.
var driverCode = regexp.MustCompile(`^rpc error: code = ([A-Za-z]+) desc = `)

// codeCauses are what the CSI specification says that the codes of CreateVolume mean (container-storage-interface/spec v1.12.0 spec.md, CreateVolume
// Errors and Error Scheme), and gRPC's own.
var codeCauses = map[string]explain.Cause{
	"ResourceExhausted": explain.StorageExhausted, "PermissionDenied": explain.StorageRefuses, "Unauthenticated": explain.StorageRefuses,
	"DeadlineExceeded": explain.DriverSilent, "Unavailable": explain.DriverSilent, "Aborted": explain.DriverSilent, "Canceled": explain.DriverSilent,
	"InvalidArgument": explain.WrongParameters, "OutOfRange": explain.WrongParameters, "AlreadyExists": explain.WrongParameters, "Unimplemented": explain.NotSupported,
	"NotFound": explain.SourceNotReady,
}

// ownSentences are those of provisioners before they call the driver. Those of external-provisioner are in pkg/controller of v5.3.0 and v6.3.0, those of the
// library in controller/controller.go of sig-storage-lib-external-provisioner v11.0.1, those of the controller in pkg/controller/volume/persistentvolume of
// k/k v1.36.3.
var ownSentences = []struct {
	text  *regexp.Regexp
	cause explain.Cause
}{
	// pv_controller.go:1571 has the API server's error; the library's is in controller.go:1679.
	{regexp.MustCompile(`^(storageclass\.storage\.k8s\.io|storageClass) "[^"]*" not found$`), explain.ClassMissing},
	// controller.go:698 (v5), :737 (v6), before the texts of topology.go.
	{regexp.MustCompile(`^error generating accessibility requirements: `), explain.NoTopology},
	// kubernetes-sigs/nfs-subdir-external-provisioner@59a3ca2 cmd/nfs-subdir-external-provisioner/provisioner.go:116, :118, and :167, :182, :188 of a delete.
	{regexp.MustCompile(`^(unable to create directory to provision new pv: )?(mkdir|chmod|unlinkat|rename|remove) /.*: (permission denied|operation not permitted|read-only file system)$`), explain.ExportNotWritable},
	// rancher/local-path-provisioner#338, openebs/dynamic-localpv-provisioner#186.
	{regexp.MustCompile(`^configuration error, no node was specified$`), explain.NodeNotChosen},
	// controller.go:674 (v5), :701 (v6), before those about snapshots and claims, and :589, :595.
	{regexp.MustCompile(`^error getting handle for DataSource Type |^the PVC source (not found|does not belong) `), explain.SourceNotReady},
	// controller.go:1854 (v5), :2009 (v6), and those about the names of secrets, :1728 to :1842.
	{regexp.MustCompile(`^error getting secret |^failed to get (default )?name and namespace template from params: |^error resolving value "|^"[^"]*" (resolved to "[^"]*" which )?is not a valid (secret|namespace) name`), explain.SecretOfClass},
	// controller.go:647, :747, :1021; :770 about a VolumeAttributesClass.
	{regexp.MustCompile(`^fstype specified in parameters with both |^failed to strip CSI Parameters of prefixed keys: |^VAC `), explain.WrongParameters},
	// controller.go:425 to :450, :627; the library's :1310; pv_controller.go:1616, :1671.
	{regexp.MustCompile(`^CSI driver does not support |^claim Selector is not supported$| does not support block volume provisioning$|is not a CSI plugin\. |^Mount options are not supported by the provisioner `), explain.NotSupported},
}

// wordCauses are what the words of a driver say that its code may not: a cloud's refusal is often Internal.
var wordCauses = map[drivers.Situation]explain.Cause{
	drivers.Quota: explain.StorageExhausted, drivers.NoSpace: explain.StorageExhausted, drivers.Credentials: explain.StorageRefuses, drivers.NoCredentials: explain.CredentialsMissing,
	drivers.KeyUnusable: explain.KeyUnusable, drivers.Vanished: explain.KeyUnusable, drivers.Repeated: explain.AttemptRepeated,
	drivers.PolicyMissing: explain.PolicyMissing, drivers.NoDatastore: explain.NoDatastore, drivers.ExportDenied: explain.ExportNotWritable,
	drivers.ServerFailing: explain.ServerRefuses, drivers.NFSVersion: explain.ServerRefuses,
	drivers.Unreachable: explain.StorageUnreachable, drivers.Certificate: explain.CertificateRefused,
}

// provisioningCause reads the message of an event ProvisioningFailed, and cuts off what its reader knows: who speaks comes first. What stands
// behind the code is the driver's, whatever words it uses.
func provisioningCause(provisioner, message string) (explain.Cause, string) {
	message = strings.TrimPrefix(message, combined)
	message = message[len(provisionFailed.FindString(message)):]
	if found := driverCode.FindStringSubmatch(message); found != nil {
		text := oneLine(message[len(found[0]):])
		read := drivers.Read(provisioner, drivers.Create, found[1], text)
		if text = read.Cause(text); (read.Situation == "" || read.At == 0) && codeCauses[found[1]] != "" {
			text = found[1] + ": " + text // the code says more than the words
		}
		if means := meanings[read.Situation]; means != "" && !strings.Contains(means, "{") {
			text = means + ": " + text
		}
		return cmp.Or(wordCauses[read.Situation], codeCauses[found[1]]), text
	}
	for _, own := range ownSentences {
		if own.text.MatchString(message) {
			return own.cause, message
		}
	}
	return "", message
}
