package kube

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// FuzzParseUniqueVolumeName reads any entry of a Node's lists. What it takes for a volume gives the same entry again.
func FuzzParseUniqueVolumeName(f *testing.F) {
	for _, name := range []string{
		"", "kubernetes.io/csi/", "kubernetes.io/csi/d^h", "kubernetes.io/csi/d^h^i", "kubernetes.io/csi/^h", "kubernetes.io/csi/d^",
		"kubernetes.io/fc/[w]:0", "kubernetes.io/fc/", "kubernetes.io/iscsi/10.0.0.1:3260:iqn:0", "kubernetes.io/aws-ebs/vol-1",
		InlineVolumeName("uid", "data"), UniqueVolumeName("kubernetes.io/fc", "x^y"),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		driver, handle, ok := ParseUniqueVolumeName(name)
		if !ok {
			return
		}
		if driver == "" || handle == "" {
			t.Fatalf("%q is driver %q, handle %q", name, driver, handle)
		}
		if again := UniqueVolumeName(driver, handle); again != name {
			t.Fatalf("%q is driver %q, handle %q, and these give %q", name, driver, handle, again)
		}
	})
}

// FuzzUniqueVolumeName goes the other way: whatever the handle, the volume is found again by its entry, and by no other one's.
func FuzzUniqueVolumeName(f *testing.F) {
	f.Add("ebs.csi.aws.com", "vol-1")
	f.Add("d", "a^b/c")
	f.Add(FibreChannelPlugin, "[w1,w2]:0")
	f.Add(ISCSIPlugin, "10.0.0.1:3260:iqn:0")
	f.Fuzz(func(t *testing.T, driver, handle string) {
		if handle == "" || driver == "" || strings.Contains(driver, "^") {
			return // no driver has such a name (CSI, "GetPluginInfo"), no volume such a handle
		}
		name := UniqueVolumeName(driver, handle)
		if gotDriver, gotHandle, ok := ParseUniqueVolumeName(name); !ok || gotDriver != driver || gotHandle != handle {
			t.Fatalf("driver %q, handle %q give %q, which is read as %q, %q, %v", driver, handle, name, gotDriver, gotHandle, ok)
		}
	})
}

// FuzzAttachmentNames: whatever the driver, its VolumeAttachments and finalizers have names that the API server accepts.
func FuzzAttachmentNames(f *testing.F) {
	f.Add("ebs.csi.aws.com", "vol-1", "node-1")
	f.Add("driver-", "\x00\xff", "")
	f.Add("_", "", "n")
	f.Fuzz(func(t *testing.T, driver, handle, node string) {
		name := AttachmentName(handle, driver, node)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || !IsAttachmentName(name) {
			t.Fatalf("%q, %q and %q give %q: %v", handle, driver, node, name, problems)
		}
		if !IsAttachmentNameOf(name, handle, driver, node) || IsAttachmentNameOf(name, handle+"x", driver, node) {
			t.Fatalf("%q is not seen to be that of %q, %q and %q alone", name, handle, driver, node)
		}
		if other := AttachmentName(handle+"x", driver, node); other == name {
			t.Fatalf("two handles give %q", name)
		}
		sanitized := SanitizeDriverName(driver)
		if strings.HasSuffix(sanitized, "-") || notFinalizerChar.MatchString(sanitized) {
			t.Fatalf("driver %q gives %q", driver, sanitized)
		}
		if again := SanitizeDriverName(sanitized); again != sanitized {
			t.Fatalf("%q gives %q, and that gives %q", driver, sanitized, again)
		}
		valid := driver != "" && len(driver) <= 63 && len(validation.IsDNS1123Subdomain(strings.ToLower(driver))) == 0
		if problems := validation.IsQualifiedName(AttacherFinalizer(driver)); valid && len(problems) > 0 {
			t.Fatalf("driver %q has the finalizer %q: %v", driver, AttacherFinalizer(driver), problems)
		}
	})
}
