package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/bundle"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/printable"
)

// gathering is what one archive is made of.
type gathering struct {
	*plugin
	*bundleOptions

	clients   kubernetes.Interface
	objects   dynamic.Interface
	snapshot  *diagnosis.Snapshot
	namespace string // "" for all
	archive   *bundle.Archive
	// kept are the objects that were selected, and those that they refer to.
	kept           map[diagnosis.Ref]bool
	foreignVolumes map[string]bool
}

// whole reports whether everything is selected that the user may read.
func (g *gathering) whole() bool { return g.namespace == "" && !g.pods() }

// pods reports whether only some pods are selected.
func (g *gathering) pods() bool { return g.selector != "" || g.node != "" }

// about says what was selected.
func (g *gathering) about() string {
	parts := []string{"all namespaces"}
	if g.namespace != "" {
		parts[0] = "namespace " + g.namespace
	}
	if g.selector != "" {
		parts = append(parts, "pods with "+g.selector)
	}
	if g.node != "" {
		parts = append(parts, "node "+g.node)
	}
	return g.archive.Redactor.Text(strings.Join(parts, ", "))
}

// pseudonyms are for all names that were read.
func (g *gathering) pseudonyms(ctx context.Context) *bundle.Pseudonyms {
	names := map[string][]string{}
	add := func(kind, name string) { names[kind] = append(names[kind], name) }
	if list, err := g.clients.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err == nil {
		for i := range list.Items {
			add("namespace", list.Items[i].Name)
		}
	}
	for _, pod := range g.snapshot.Pods {
		addPod(add, pod)
	}
	g.inlinePods(ctx, func(pod *corev1.Pod) { addPod(add, pod) })
	for _, claim := range g.snapshot.Claims {
		add("namespace", claim.Namespace)
		add("claim", claim.Name)
	}
	for _, pv := range g.snapshot.Volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			add("namespace", ref.Namespace)
			add("claim", ref.Name)
		}
	}
	for _, node := range g.snapshot.Nodes {
		add("node", node.Name)
		add("node", node.Labels[corev1.LabelHostname])
	}
	for _, va := range g.snapshot.Attachments {
		add("node", va.Spec.NodeName)
	}
	for _, fence := range g.snapshot.Fences {
		add("node", fence.Spec.NodeName)
		add("node", fence.Name)
	}
	for _, source := range g.snapshot.FenceSources {
		add("node", source.Name)
	}
	for _, event := range g.snapshot.Events {
		if event.InvolvedObject.Kind == "Pod" {
			add("pod", event.InvolvedObject.Name)
		}
	}
	add("namespace", g.namespace)
	add("node", g.node)
	return bundle.NewPseudonyms([]string{"namespace", "node", "claim", "pod", "owner"}, names)
}

// addPod adds the names of a pod and its owners.
func addPod(add func(kind, name string), pod *corev1.Pod) {
	add("namespace", pod.Namespace)
	add("pod", pod.Name)
	for _, owner := range pod.OwnerReferences {
		add("owner", owner.Name)
		if hash := pod.Labels["pod-template-hash"]; hash != "" { // the Deployment of a ReplicaSet
			add("owner", strings.TrimSuffix(owner.Name, "-"+hash))
		}
	}
}

// inlinePods calls found with the pods that have inline CSI volumes: they are in the archive, and not in the snapshot unless they also
// have a claim. Pods that cannot be listed are not in the archive.
func (g *gathering) inlinePods(ctx context.Context, found func(*corev1.Pod)) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return g.clients.CoreV1().Pods(g.namespace).List(ctx, o)
	})
	pages.PageSize, pages.PageBufferSize = bundlePage, 1
	_ = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		pod, ok := o.(*corev1.Pod)
		if ok && g.mayName(pod.Namespace) && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil }) {
			found(pod)
		}
		return nil
	})
}

// kind is a kind of objects in the archive.
type kind struct {
	schema.GroupVersionResource

	namespaced bool
	options    metav1.ListOptions
	// keep reports whether an object is selected, and remembers what it refers to.
	keep func(*unstructured.Unstructured) bool
}

// kinds come in the order in which one refers to the next.
func (g *gathering) kinds() []kind {
	core := func(resource diagnosis.Resource) schema.GroupVersionResource {
		return corev1.SchemeGroupVersion.WithResource(string(resource))
	}
	storage := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: resource}
	}
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	fences, sources := fencingv1.GroupVersion.WithResource(string(diagnosis.Fences)), fencingv1.GroupVersion.WithResource(string(diagnosis.FenceSources))
	pods := metav1.ListOptions{LabelSelector: g.selector}
	if g.node != "" {
		pods.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", g.node).String()
		g.kept[diagnosis.Ref{Resource: diagnosis.Nodes, Name: g.node}] = true
	}
	always := func(*unstructured.Unstructured) bool { return true }
	return []kind{
		{core(diagnosis.Pods), true, pods, g.keepPod},
		{core(diagnosis.Claims), true, metav1.ListOptions{}, g.keepClaim},
		{core(diagnosis.Volumes), false, metav1.ListOptions{}, g.keepVolume},
		{storage("volumeattachments"), false, metav1.ListOptions{}, g.keepAttachment},
		{core(diagnosis.Nodes), false, metav1.ListOptions{}, g.keepNode},
		{storage("csinodes"), false, metav1.ListOptions{}, g.keepNode},
		{storage("csidrivers"), false, metav1.ListOptions{}, always},
		{storage("storageclasses"), false, metav1.ListOptions{}, always},
		{leases, false, metav1.ListOptions{}, g.keepLease},
		{fences, false, metav1.ListOptions{}, g.keepNode},
		{sources, false, metav1.ListOptions{}, g.keepNode},
		{core(diagnosis.Events), true, metav1.ListOptions{}, g.keepEvent},
	}
}

// gather fills the archive. The objects leave space for the answers, which are short and show what is wrong.
func (g *gathering) gather(ctx context.Context) error {
	reserved := g.archive.Left / 4
	g.archive.Left -= reserved
	for _, k := range g.kinds() {
		if err := g.list(ctx, k); err != nil {
			return err
		}
	}
	g.archive.Left += reserved
	if err := g.answers(ctx); err != nil {
		return err
	}
	if g.logs {
		g.gatherLogs(ctx)
	} else {
		g.archive.Note("logs: left out by --logs=false")
	}
	return nil
}

// bundlePage limits a page of objects.
const bundlePage = 500

// list adds the objects of a kind.
func (g *gathering) list(ctx context.Context, k kind) error {
	resources := dynamic.ResourceInterface(g.objects.Resource(k.GroupVersionResource))
	if k.namespaced && g.namespace != "" {
		resources = g.objects.Resource(k.GroupVersionResource).Namespace(g.namespace)
	}
	file := g.archive.Objects("objects/" + k.Resource + ".yaml")
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return resources.List(ctx, o) })
	pages.PageSize, pages.PageBufferSize = bundlePage, 1
	var failed error
	err := pages.EachListItem(ctx, k.options, func(o runtime.Object) error {
		object, ok := o.(*unstructured.Unstructured)
		if !ok || object.GetNamespace() != "" && !g.mayName(object.GetNamespace()) {
			return nil
		}
		inspect.Cut(object)
		if !k.keep(object) {
			return nil
		}
		failed = file.Add(object)
		return failed
	})
	kept := file.Close()
	switch {
	case failed != nil:
		return failed
	case apierrors.IsNotFound(err) && k.Group == fencingv1.GroupVersion.Group:
		return nil // recovery is not installed
	case apierrors.IsForbidden(err):
		g.archive.Note(k.Resource + ": you lack the permission to list them")
	case err != nil && ctx.Err() != nil:
		return interrupted(ctx, err)
	case err != nil:
		g.archive.Note(k.Resource + ": " + err.Error())
	}
	_, _ = fmt.Fprintf(g.ErrOut, "%s: %d\n", k.Resource, kept)
	return nil
}

func (g *gathering) mayName(namespace string) bool {
	return namespace == metav1.NamespaceSystem || namespace == corev1.NamespaceNodeLease || g.snapshot.MayName(namespace)
}

func text(o *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, path...)
	return s
}

func (g *gathering) remember(resource diagnosis.Resource, namespace, name string) bool {
	g.kept[diagnosis.Ref{Resource: resource, Namespace: namespace, Name: name}] = true
	return true
}

func (g *gathering) selected(resource diagnosis.Resource, namespace, name string) bool {
	return g.kept[diagnosis.Ref{Resource: resource, Namespace: namespace, Name: name}]
}

// keepPod keeps a pod with a volume that a driver serves.
func (g *gathering) keepPod(o *unstructured.Unstructured) bool {
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &pod); err != nil {
		return false
	}
	uses := false
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			uses = g.remember(diagnosis.Claims, pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			uses = g.remember(diagnosis.Claims, pod.Namespace, pod.Name+"-"+v.Name)
		case v.CSI != nil:
			uses = true
		}
	}
	if uses {
		g.remember(diagnosis.Nodes, "", pod.Spec.NodeName)
		g.remember(diagnosis.Pods, pod.Namespace, pod.Name)
	}
	return uses
}

func (g *gathering) keepClaim(o *unstructured.Unstructured) bool {
	if g.pods() && !g.selected(diagnosis.Claims, o.GetNamespace(), o.GetName()) {
		return false
	}
	g.remember(diagnosis.Claims, o.GetNamespace(), o.GetName())
	return g.remember(diagnosis.Volumes, "", text(o, "spec", "volumeName"))
}

// keepVolume keeps a volume of a claim that was kept: a claim that is gone left its name in the volume.
func (g *gathering) keepVolume(o *unstructured.Unstructured) bool {
	namespace, claim := text(o, "spec", "claimRef", "namespace"), text(o, "spec", "claimRef", "name")
	switch {
	case g.whole(), g.selected(diagnosis.Volumes, "", o.GetName()), claim != "" && g.selected(diagnosis.Claims, namespace, claim):
	case !g.pods() && namespace == g.namespace:
	default:
		return false
	}
	return g.remember(diagnosis.Volumes, "", o.GetName())
}

func (g *gathering) keepAttachment(o *unstructured.Unstructured) bool {
	node := text(o, "spec", "nodeName")
	if !g.whole() && !g.selected(diagnosis.Volumes, "", text(o, "spec", "source", "persistentVolumeName")) && (g.node == "" || node != g.node) {
		return false
	}
	if g.foreign(text(o, "spec", "source", "persistentVolumeName")) {
		for _, field := range []string{"attachError", "detachError"} { // a driver may name the claim or the pod
			if text(o, "status", field, "message") != "" {
				_ = unstructured.SetNestedField(o.Object, bundle.Removed, "status", field, "message")
			}
		}
	}
	g.remember(diagnosis.Nodes, "", node)
	return g.remember(diagnosis.Attachments, "", o.GetName())
}

// foreign reports whether a volume belongs to a namespace that the user may not read.
func (g *gathering) foreign(volume string) bool {
	if g.foreignVolumes == nil {
		g.foreignVolumes = map[string]bool{}
		for _, pv := range g.snapshot.Volumes {
			g.foreignVolumes[pv.Name] = pv.Spec.ClaimRef != nil && !g.snapshot.MayName(pv.Spec.ClaimRef.Namespace)
		}
	}
	return g.foreignVolumes[volume]
}

func (g *gathering) keepNode(o *unstructured.Unstructured) bool {
	return g.whole() && g.remember(diagnosis.Nodes, "", o.GetName()) || g.selected(diagnosis.Nodes, "", o.GetName())
}

func (g *gathering) keepLease(o *unstructured.Unstructured) bool {
	return o.GetNamespace() != corev1.NamespaceNodeLease || g.keepNode(o)
}

// keepEvent keeps those of objects that are in the archive, and of pods that are gone if they are about volumes.
func (g *gathering) keepEvent(o *unstructured.Unstructured) bool {
	resource, ok := map[string]diagnosis.Resource{
		"Pod": diagnosis.Pods, "PersistentVolumeClaim": diagnosis.Claims, "PersistentVolume": diagnosis.Volumes,
		"VolumeAttachment": diagnosis.Attachments, "Node": diagnosis.Nodes, "NodeFence": diagnosis.Nodes,
	}[text(o, "involvedObject", "kind")]
	gone := g.whole() && !g.redact && strings.Contains(text(o, "reason")+text(o, "message"), "olume")
	return ok && (gone || g.selected(resource, text(o, "involvedObject", "namespace"), text(o, "involvedObject", "name")))
}

// fewExplanations limits how many of the stuck objects are explained.
const fewExplanations = 50

// answers adds what the other commands say.
func (g *gathering) answers(ctx context.Context) error {
	stuck := diagnosis.Stuck(g.snapshot, g.namespace, 0)
	documents := []struct {
		name string
		what any
	}{{"stuck.yaml", stuck}, {"map.yaml", diagnosis.Map(g.snapshot, g.node, "")}}
	for _, d := range documents {
		document, err := printable.YAML(d.what)
		if err != nil {
			return fmt.Errorf("encode %s: %w", d.name, err)
		}
		g.archive.Text(d.name, string(document))
	}
	var out bytes.Buffer
	printer := &plugin{flags: g.flags}
	printer.Out = &out
	report := preflight.Health(ctx, preflight.Config{Clients: g.clients}, g.snapshot, false)
	if err := printer.healthText(&report, &checkOptions{}); err != nil {
		return err
	}
	g.archive.Text("check.txt", out.String())
	var done []diagnosis.Ref
	for i := range stuck.Items {
		subject := stuck.Items[i].Subject
		if slices.Contains(done, subject) || !g.whole() && !g.kept[subject] {
			continue
		}
		if len(done) == fewExplanations {
			g.archive.Note(fmt.Sprintf("explanations of more than %d objects: stuck.yaml has all", fewExplanations))
			break
		}
		done = append(done, subject)
		e, err := diagnosis.Explain(g.snapshot, subject)
		if err != nil {
			continue // it is in stuck.yaml
		}
		out.Reset()
		if err := Text(&out, e); err != nil {
			return err
		}
		g.archive.Text(fmt.Sprintf("explain/%s-%s.txt", subject.Resource, strings.Trim(subject.Namespace+"-"+subject.Name, "-")), out.String())
	}
	_, _ = fmt.Fprintf(g.ErrOut, "explanations: %d\n", len(done))
	return nil
}

// logBytes limits one log.
const logBytes = 4 << 20

// gatherLogs adds the logs of the components' pods.
func (g *gathering) gatherLogs(ctx context.Context) {
	pods, unread := preflight.Components(ctx, g.clients, g.snapshot)
	for _, u := range unread {
		g.archive.Note("logs: could not " + u.Rule() + ": " + u.Message)
	}
	logs := 0
	for _, pod := range pods {
		for i := range pod.Spec.Containers {
			container := pod.Spec.Containers[i].Name
			if container == "belay-node" && (g.node == "" || pod.Spec.NodeName != g.node) {
				continue // one for each node of the cluster
			}
			name := fmt.Sprintf("logs/%s/%s/%s.log", pod.Namespace, pod.Name, container)
			content, err := g.log(ctx, pod, container)
			if err != nil {
				g.archive.Note(name + ": " + err.Error())
				continue
			}
			g.archive.Text(name, content)
			logs++
		}
	}
	_, _ = fmt.Fprintf(g.ErrOut, "logs: %d\n", logs)
}

func (g *gathering) log(ctx context.Context, pod *corev1.Pod, container string) (string, error) {
	options := &corev1.PodLogOptions{Container: container, TailLines: &g.tail, LimitBytes: new(int64(logBytes))}
	stream, err := g.clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer stream.Close() //nolint:errcheck // it was read
	content, err := io.ReadAll(stream)
	return string(content), err
}
