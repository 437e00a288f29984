package preflight

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// ownNamespace is where belay's manifests put its programs.
const ownNamespace = kube.OwnNamespace

// program is a container that runs one of the programs that attach volumes.
type program struct {
	name      string
	pod       *corev1.Pod
	container *corev1.Container
}

// String is the pod with its namespace.
func (p program) String() string { return p.pod.Namespace + "/" + p.pod.Name }

// csiAttacher is upstream's attacher. Its images have several names.
const csiAttacher = "csi-attacher"

// programOf recognizes a program by the name of its image or of its command.
func programOf(c *corev1.Container) string {
	image, _, _ := strings.Cut(path.Base(c.Image), "@")
	image, _, _ = strings.Cut(image, ":")
	names := []string{image}
	if len(c.Command) > 0 {
		names = append(names, path.Base(c.Command[0]))
	}
	for _, name := range names {
		switch {
		case name == kube.FieldManager, name == "belay-attacher", name == "belay-node":
			return name
		case strings.HasSuffix(name, csiAttacher), strings.HasSuffix(name, "external-attacher"):
			return csiAttacher
		}
	}
	return ""
}

// version is the tag or the digest of the image.
func (p program) version() string {
	_, version, _ := strings.Cut(path.Base(p.container.Image), ":")
	return version
}

func (p program) isAttacher() bool { return p.name == csiAttacher || p.name == "belay-attacher" }

// leads reports whether the holder of a lease is this pod: its host name is that of the pod, or with the host's network that of the node.
func (p program) leads(holder string) bool {
	host := p.pod.Name
	if p.pod.Spec.HostNetwork {
		host = p.pod.Spec.NodeName
	}
	before, _, _ := strings.Cut(holder, "_") // belay-controller adds a UUID
	return holder == kube.SanitizeDriverName(host) || before == host
}

// attacherFlags are the flags that decide how an attacher copes with load and failures, with the defaults of both attachers.
var attacherFlags = []struct{ name, value string }{{"timeout", "15s"}, {"worker-threads", "10"}, {"leader-election", "false"}}

// flags describes the flags of an attacher that holds its lease: that it elects a leader is known, whatever its default.
func (p program) flags() string {
	words := slices.Concat(p.container.Command, p.container.Args)
	var parts []string
	for _, f := range attacherFlags {
		values := flagValues(words, f.name)
		if len(values) == 0 && f.name == "leader-election" {
			continue
		}
		if len(values) == 0 {
			parts = append(parts, "--"+f.name+"="+f.value+" (default)")
			continue
		}
		value := values[len(values)-1]
		if _, err := strconv.ParseBool(value); err != nil && f.value == "false" {
			value = "true"
		}
		parts = append(parts, "--"+f.name+"="+value)
	}
	return strings.Join(parts, " ")
}

// readComponents reads what the snapshot does not have: the programs, the API priority, and the version.
func (h *health) readComponents(ctx context.Context, c Config) {
	h.upstream, h.upstreamErr = findUpstreams(ctx, c.Clients, cmp.Or(c.Clock, &kube.ServerClock{}))
	if version, err := c.Clients.Discovery().ServerVersion(); err != nil {
		h.versionErr = err
	} else {
		h.version = version.GitVersion
	}
	h.readAllPrograms(ctx, c.Clients)
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.Clients.FlowcontrolV1().FlowSchemas().List(ctx, o)
	})
	pages.PageSize = pageSize
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if schema, ok := obj.(*flowcontrolv1.FlowSchema); ok {
			h.flows = append(h.flows, *schema)
		}
		return nil
	})
	if err != nil {
		h.failed(diagnosis.Unread{Ref: diagnosis.Ref{Resource: "flowschemas"}}, err)
		return
	}
	h.flowsRead = true
}

// Components returns the running pods of belay's programs and of the drivers' attachers, of the namespaces in which these have leases, and
// what could not be read.
func Components(ctx context.Context, clients kubernetes.Interface, s *diagnosis.Snapshot) ([]*corev1.Pod, []diagnosis.Unread) {
	h := &health{Snapshot: s, read: map[string]bool{}}
	h.readAllPrograms(ctx, clients)
	var pods []*corev1.Pod
	for _, p := range h.programs {
		if !slices.Contains(pods, p.pod) {
			pods = append(pods, p.pod)
		}
	}
	return pods, h.unread
}

func (h *health) readAllPrograms(ctx context.Context, clients kubernetes.Interface) {
	namespaces := []string{upstreamNamespace, ownNamespace}
	for _, l := range h.Leases {
		if (l.Name == kube.FieldManager || strings.HasPrefix(l.Name, kube.AttacherLease)) && !slices.Contains(namespaces, l.Namespace) {
			namespaces = append(namespaces, l.Namespace)
		}
	}
	for _, namespace := range namespaces {
		h.readPrograms(ctx, clients, namespace)
	}
}

// readPrograms reads the pods of a namespace and keeps those that run a program.
func (h *health) readPrograms(ctx context.Context, clients kubernetes.Interface, namespace string) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return clients.CoreV1().Pods(namespace).List(ctx, o)
	})
	pages.PageSize = pageSize
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		pod, ok := obj.(*corev1.Pod)
		if !ok || kube.PodEnded(pod) || pod.Status.Phase != corev1.PodRunning {
			return nil
		}
		for i := range pod.Spec.Containers {
			if name := programOf(&pod.Spec.Containers[i]); name != "" {
				h.programs = append(h.programs, program{name, pod, &pod.Spec.Containers[i]})
			}
		}
		return nil
	})
	if err != nil {
		u := diagnosis.Unread{Ref: diagnosis.Ref{Resource: diagnosis.Pods, Namespace: namespace}}
		if namespace != upstreamNamespace && namespace != ownNamespace && !h.MayName(namespace) {
			u.Namespace = ""
		}
		h.failed(u, err)
		return
	}
	h.read[namespace] = true
}
