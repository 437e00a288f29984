package diagnosis

import (
	"fmt"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
)

// of makes the volume one of another driver, which is being attached to node a, and fails with this error.
func (s scene) failing(driver string, e storagev1.VolumeError) {
	s.Volumes[0].Spec.CSI.Driver, s.va.Spec.Attacher = driver, driver
	s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &e}
}

func grpcError(code, text string) storagev1.VolumeError {
	return storagev1.VolumeError{Message: fmt.Sprintf("rpc error: code = %s desc = %s", code, text)}
}

// TestAnswersOfDrivers: each example of internal/drivers/facts.yaml is explained as what it is an example of, and the explanation adds what the
// driver's text hides.
func TestAnswersOfDrivers(t *testing.T) {
	publish := map[drivers.Situation]decision.Reason{
		drivers.AttachedElsewhere: explain.BackendDisagrees, drivers.NodeFull: explain.AttachLimitReached, drivers.UnknownNode: attachment.AttachFailed,
		drivers.VolumeGone: attachment.AttachFailed, drivers.Busy: attachment.AttachFailed, drivers.RateLimit: attachment.AttachFailed,
	}
	hides := map[drivers.Situation]string{
		drivers.UnknownNode: "does not know a machine with the node's ID", drivers.Busy: "another operation", drivers.RateLimit: "limits requests",
	}
	examples := 0
	for _, f := range drivers.All() {
		for _, situation := range drivers.Situations() {
			for i, a := range f.Answers[situation] {
				if a.Example == "" {
					continue
				}
				examples++
				codes := []string{a.Code}
				if a.Code == drivers.AnyCode {
					codes = []string{"ResourceExhausted", "InvalidArgument", "Unavailable"}
				}
				for _, code := range codes {
					t.Run(fmt.Sprintf("%s/%s/%d/%s", f.Driver, situation, i, code), func(t *testing.T) {
						want := publish[situation]
						if a.Call == drivers.Unpublish {
							want = attachment.DetachFailed
						}
						e := grpcError(code, a.Example)
						reason, said := reasonOf(&e, f.Driver, a.Call)
						if reason != want || !strings.Contains(said, hides[situation]) || said != "" && hides[situation] == "" {
							t.Errorf("%q: %s, %q; want %s, and %q", e.Message, reason, said, want, hides[situation])
						}
					})
				}
			}
		}
	}
	if examples < 50 {
		t.Errorf("the file has %d examples", examples)
	}
}

// TestAnswersBesideTheFacts: what the file does not list is read by CSI's codes: for a driver that it does not know, and for one that it
// knows as far as the file has nothing else.
func TestAnswersBesideTheFacts(t *testing.T) {
	const ebs, gce, hetzner = "ebs.csi.aws.com", "pd.csi.storage.gke.io", "csi.hetzner.cloud"
	for name, one := range map[string]struct {
		driver string
		err    storagev1.VolumeError
		want   decision.Reason
	}{
		"attached elsewhere, by the code":               {oneDriver, grpcError("FailedPrecondition", "in use"), explain.BackendDisagrees},
		"a text of EBS from another driver":             {oneDriver, grpcError("Internal", "api error VolumeInUse"), attachment.AttachFailed},
		"full, by the code":                             {oneDriver, grpcError("ResourceExhausted", "RATE_LIMIT_EXCEEDED"), explain.AttachLimitReached},
		"not reached":                                   {oneDriver, grpcError("Unavailable", "server is locked"), explain.DriverUnavailable},
		"no answer, by the words":                       {oneDriver, grpcError("Internal", "context deadline exceeded"), explain.DriverUnavailable},
		"EBS: EC2 did not answer the driver":            {ebs, grpcError("Internal", "Could not attach volume: error listing AWS instances: operation error EC2: DescribeInstances, request canceled, context deadline exceeded"), attachment.AttachFailed},
		"EBS: not reached":                              {ebs, grpcError("Unavailable", "connection error: connection refused"), explain.DriverUnavailable},
		"EBS: no answer":                                {ebs, grpcError("DeadlineExceeded", "context deadline exceeded"), explain.DriverUnavailable},
		"EBS: no answer, and no code":                   {ebs, storagev1.VolumeError{Message: "context deadline exceeded"}, explain.DriverUnavailable},
		"GCE: a precondition that is another one":       {gce, grpcError("FailedPrecondition", "Disk (d1) requires restriping before being attached to instance (i)"), attachment.AttachFailed},
		"GCE: full is not read, so the code counts":     {gce, grpcError("ResourceExhausted", "no more disks"), explain.AttachLimitReached},
		"GCE: the code is in the field alone":           {gce, storagev1.VolumeError{Message: "The disk resource 'd' is already being used by 'i'", ErrorCode: new(int32(3))}, explain.BackendDisagrees},
		"Hetzner: exhausted, and not the node":          {hetzner, grpcError("ResourceExhausted", "something else"), attachment.AttachFailed},
		"Hetzner: unavailable, and not a locked one":    {hetzner, grpcError("Unavailable", "connection refused"), explain.DriverUnavailable},
		"the attacher's own words about a known one":    {ebs, storagev1.VolumeError{Message: "the VolumeAttachment was removed before the driver confirmed the detach"}, explain.BackendDisagrees},
		"a Secret of a known one":                       {ebs, storagev1.VolumeError{Message: `failed to load secret "ns/s": not found`}, explain.SecretMissing},
		"a known one that has not registered":           {ebs, storagev1.VolumeError{Message: "CSINode n does not contain driver ebs.csi.aws.com"}, explain.DriverNotOnNode},
		"a text of the facts without the driver's code": {ebs, storagev1.VolumeError{Message: "VolumeInUse"}, attachment.AttachFailed},
	} {
		t.Run(name, func(t *testing.T) {
			if reason, _ := reasonOf(&one.err, one.driver, drivers.Publish); reason != one.want {
				t.Errorf("%q: %s, want %s", one.err.Message, reason, one.want)
			}
		})
	}
}

// TestAnswerThatMisleads: an explanation adds to the driver's text what the driver means.
func TestAnswerThatMisleads(t *testing.T) {
	s := newScene()
	s.failing("ebs.csi.aws.com", grpcError("NotFound", `Volume "vol-1" not found`))
	s.holder.Status = s.waiter.Status
	e, err := Explain(s.Snapshot, Ref{Resource: Attachments, Name: s.va.Name})
	if err != nil || e.Reason != attachment.AttachFailed || !strings.Contains(e.Summary, `Volume "vol-1" not found (the driver answers so if it does not know a machine with the node's ID`) {
		t.Errorf("%s: %s (%v), want that the machine is unknown, and not the volume", e.Reason, e.Summary, err)
	}
}
