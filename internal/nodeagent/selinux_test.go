package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
	corev1 "k8s.io/api/core/v1"
)

// withSELinux has an agent label files as Fedora's policy does.
func withSELinux(c *Config) { c.fileLabel = fedoraLabel }

func fedoraLabel(o *corev1.SELinuxOptions) (string, error) {
	if strings.HasPrefix(o.Level, "bad") {
		return "", errors.New("bad level")
	}
	return fmt.Sprintf("%s:object_r:container_file_t:%s", cmp.Or(o.User, "system_u"), o.Level), nil
}

// labelled gives a pod SELinux options with this level; none if it is empty.
func labelled(level string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if level != "" {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
		}
	}
}

// inFull adds what labelled leaves to the node's policy.
func inFull(p *corev1.Pod) {
	options := p.Spec.SecurityContext.SELinuxOptions
	options.User, options.Role, options.Type = "system_u", "object_r", "container_t"
}

func recursively(p *corev1.Pod) {
	p.Spec.SecurityContext.SELinuxChangePolicy = new(corev1.SELinuxChangePolicyRecursive)
}

func byMountOption(p *corev1.Pod) {
	p.Spec.SecurityContext.SELinuxChangePolicy = new(corev1.SELinuxChangePolicyMountOption)
}

// TestGetMountSELinuxLabel is upstream's table, with the label that the volume is mounted with if its
// driver does that, and what pods of other shapes come to.
func TestGetMountSELinuxLabel(t *testing.T) {
	const one = "system_u:object_r:container_file_t:s0:c123,c456"
	level := func(level string) *corev1.SELinuxOptions { return &corev1.SELinuxOptions{Level: level} }
	// Each of these is a container of its own that mounts the volume.
	containers := func(options ...*corev1.SELinuxOptions) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{}
			p.Spec.Containers = nil
			for _, o := range options {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
					SecurityContext: &corev1.SecurityContext{SELinuxOptions: o}, VolumeMounts: []corev1.VolumeMount{{Name: "data"}},
				})
			}
		}
	}
	same, three := containers(level("s0:c123,c456"), level("s0:c123,c456")), containers(level("s0:c345,c678"), level("s0:c123,c456"), level("s0:c234,c567"))
	const multiple = "multiple SELinux labels found: " + one + ",system_u:object_r:container_file_t:s0:c234,c567,system_u:object_r:container_file_t:s0:c345,c678"
	tests := map[string]struct {
		pod   []func(*corev1.Pod)
		want  string
		fails string
	}{
		"no label, no changePolicy":                               {},
		"no label, Recursive change policy":                       {pod: []func(*corev1.Pod){containers(nil), recursively}},
		"one label, Recursive change policy, SELinuxChangePolicy": {pod: []func(*corev1.Pod){labelled("s0:c123,c456"), recursively}},
		"one label, no policy":                                    {pod: []func(*corev1.Pod){labelled("s0:c123,c456")}, want: one},
		"one label, MountOption policy":                           {pod: []func(*corev1.Pod){labelled("s0:c123,c456"), byMountOption}, want: one},
		"multiple same labels, no policy":                         {pod: []func(*corev1.Pod){same}, want: one},
		"multiple different labels, no policy":                    {pod: []func(*corev1.Pod){three}, fails: multiple},
		"multiple different labels, Recursive policy":             {pod: []func(*corev1.Pod){three, recursively}, fails: multiple},
		"no level: the runtime draws one": {pod: []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"}}
		}}},
		"one container without a level": {
			pod:   []func(*corev1.Pod){containers(level("s0:c123,c456"), &corev1.SELinuxOptions{Type: "container_t"})},
			fails: "multiple SELinux labels found: ," + one,
		},
		"one container without options": {pod: []func(*corev1.Pod){containers(level("s0:c123,c456"), nil)}, want: one},
		"a label that cannot be told": {
			pod: []func(*corev1.Pod){labelled("bad")}, fails: "failed to construct SELinux label from context",
		},
		"init and ephemeral containers count": {pod: []func(*corev1.Pod){func(p *corev1.Pod) {
			mounts := p.Spec.Containers[0].VolumeMounts
			p.Spec.Containers[0].VolumeMounts = nil
			security := &corev1.SecurityContext{SELinuxOptions: level("s0:c123,c456")}
			p.Spec.InitContainers = []corev1.Container{{VolumeMounts: mounts, SecurityContext: security}}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: mounts, SecurityContext: security}}}
		}}, want: one},
		"init and ephemeral containers differ": {pod: []func(*corev1.Pod){func(p *corev1.Pod) {
			mounts := p.Spec.Containers[0].VolumeMounts
			p.Spec.Containers[0].VolumeMounts = nil
			p.Spec.InitContainers = []corev1.Container{{VolumeMounts: mounts, SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s0:c1")}}}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				VolumeMounts: mounts, SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s0:c2")},
			}}}
		}}, fails: "multiple SELinux labels found"},
		// Of another volume, or of a container that takes the pod's options for its own.
		"pod with SELinuxOptions": {pod: []func(*corev1.Pod){labelled("s0:c1,c2"), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{SELinuxOptions: level("s0:c123,c456")}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "other"}}})
		}}, want: one},
		"the pod's user": {pod: []func(*corev1.Pod){labelled("s0"), func(p *corev1.Pod) {
			p.Spec.SecurityContext.SELinuxOptions.User = "staff_u"
		}}, want: "staff_u:object_r:container_file_t:s0"},
		"used as a device": {pod: []func(*corev1.Pod){labelled("s0:c123,c456"), device}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}}}}
			for _, change := range test.pod {
				change(pod)
			}
			got, err := seLinuxLabel(pod, "data", fedoraLabel)
			if got != test.want {
				t.Errorf("label %q, want %q", got, test.want)
			}
			var refusal *RefusedError
			if (test.fails == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), test.fails) || !errors.As(err, &refusal)) {
				t.Errorf("said %v, want %q", err, test.fails)
			}
		})
	}
}

// Without SELinux nothing is labelled, and containers need not agree. With SELinux the node's policy determines the
// label.
func TestFileLabelFollowsNodePolicy(t *testing.T) {
	got, err := fileLabel(&corev1.SELinuxOptions{Level: "s0:c123,c456"})
	must(t, err)
	if on := selinux.GetEnabled(); (got != "") != on || on && !strings.HasSuffix(got, ":s0:c123,c456") {
		t.Errorf("label %q where SELinux is on: %v", got, on)
	}
}
