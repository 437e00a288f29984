package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/pager"

	"belay.dev/belay/internal/kube"
)

// traces are the writes of attach/detach controllers to one resource.
type traces struct {
	check   Check
	total   int
	writers map[string]int // of what exists, by manager
	known   map[string]any // by object, what existed before
	// term has what other components wrote in the term of the present kube-controller-manager leader, now what they wrote during
	// the watch.
	term, now, byHand []string
	// proof is set if no node's credentials suffice for such a write.
	proof bool
	// hint is set for events: who may write them in one namespace says in them what it likes, so they are named and change no result.
	hint  bool
	since string // the version of the list
}

func newTraces(name string) *traces {
	return &traces{check: Check{Name: name}, writers: map[string]int{}, known: map[string]any{}}
}

// writers are the three resources that an attach/detach controller writes to.
type writers struct{ reports, attachments, events *traces }

// checkWriters searches for other attach/detach controllers: first in what exists, then in what changes.
func (r *run) checkWriters(ctx context.Context) []Check {
	w := &writers{reports: newTraces("node reports"), attachments: newTraces("volume attachments"), events: newTraces("attach/detach events")}
	w.attachments.proof, w.events.hint = true, true
	nodes, err := r.listNodes(ctx, w.reports)
	lists := []struct {
		of       *traces
		resource string
		err      error
	}{
		{w.reports, "nodes", err},
		{w.attachments, "volumeattachments", r.listAttachments(ctx, w.attachments)},
		{w.events, "events", r.listEvents(ctx, w.events)},
	}
	failed := false
	for _, l := range lists {
		if l.err != nil {
			failed, l.of.check = true, l.of.check.unknown(l.err, "list", l.resource)
		}
	}
	watched := r.Observe > 0 && !failed
	if watched {
		if err := r.observe(ctx, w); err != nil {
			failed, w.reports.check = true, w.reports.check.unknown(err, "watch", "nodes, volumeattachments and events")
		}
	}
	checks := []Check{nodes}
	for _, l := range lists {
		if l.of.check.Result == "" {
			l.of.check = r.judge(l.of, watched && !failed)
		}
		checks = append(checks, l.of.check)
	}
	return checks
}

// judge turns the traces into a result.
func (r *run) judge(t *traces, watched bool) Check {
	c, there := t.check, fmt.Sprintf("%d; last written by: %s", t.total, counts(t.writers))
	switch {
	case t.hint:
		return r.hinted(c, t, there)
	case r.Phase == Prepare:
		return c.expected(t, there)
	case len(t.now) > 0 && t.proof:
		c.Result, c.Message, c.Objects = Refused, "another attach/detach controller is running; "+there, t.now
	case len(t.term) > 0 && t.proof:
		c.Result, c.Objects = Refused, t.term
		c.Message = fmt.Sprintf("the attach/detach controller is enabled in %s, which has led since %s; %s", r.term.holder, r.term.since.Format(time.RFC3339), there)
	case len(t.now)+len(t.term) > 0:
		return r.unconfirmed(c, "another component writes as an attach/detach controller does; "+there, slices.Concat(t.now, t.term))
	case len(t.byHand) > 0:
		c.Result, c.Message, c.Objects = Warning, there+"; changed with kubectl", t.byHand
	case watched:
		c.Result, c.Message = OK, fmt.Sprintf("%s; no other controller wrote within %v", there, r.Observe)
	default:
		c.Result, c.Message = OK, there+"; not watched"
	}
	return c
}

// hinted names what only events say. Who attaches is in what an attach/detach controller writes besides.
func (r *run) hinted(c Check, t *traces, there string) Check {
	c.Result, c.Message = OK, there
	if said := slices.Concat(t.now, t.term, t.byHand); len(said) > 0 && r.Phase != Prepare { // before the switch, another is to write
		c.Objects = said
		c.Message += "; some say that another component attaches or detaches, which any client with the right to write events in one namespace may write"
	}
	return c
}

func counts(by map[string]int) string {
	if len(by) == 0 {
		return "none"
	}
	var all []string
	for name, n := range by {
		all = append(all, fmt.Sprintf("%s (%d)", name, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// listNodes reads the reports, and returns a check of nodes that belay does not manage.
func (r *run) listNodes(ctx context.Context, t *traces) (unmanaged Check, err error) {
	unmanaged = Check{Name: "unmanaged nodes", Result: OK, Message: "none"}
	list, err := r.Clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unmanaged.unknown(err, "list", "nodes"), err
	}
	t.total, t.since = len(list.Items), list.ResourceVersion
	for i := range list.Items {
		node := &list.Items[i]
		t.known[node.Name] = node.Status.VolumesAttached
		if w, ok := kube.ReportWriter(node); ok {
			t.writers[w.Manager]++
		}
		if _, managed := node.Annotations[kube.ManagedAttachAnnotation]; !managed {
			unmanaged.Objects = append(unmanaged.Objects, "node "+node.Name)
		}
	}
	if n := len(unmanaged.Objects); n > 0 {
		unmanaged.Message = fmt.Sprintf("%d nodes attach by themselves (kubelet's enableControllerAttachDetach is off) and are left alone", n)
	}
	return unmanaged, nil
}

func (r *run) listAttachments(ctx context.Context, t *traces) error {
	list, err := r.Clients.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	t.total, t.since = len(list.Items), list.ResourceVersion
	for i := range list.Items {
		va := &list.Items[i]
		t.known[va.Name] = true
		w, ok := kube.AttachmentCreator(va)
		if !ok {
			continue
		}
		t.writers[w.Manager]++
		if foreign(w) && kube.IsAttachmentName(va.Name) && r.term.includes(va.CreationTimestamp.Time) {
			t.term = append(t.term, fmt.Sprintf("volumeattachment %s: created by %s at %s", va.Name, w.Manager, va.CreationTimestamp.Format(time.RFC3339)))
		}
	}
	return nil
}

func (r *run) listEvents(ctx context.Context, t *traces) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list, err := r.Clients.CoreV1().Events("").List(ctx, o)
		if err == nil && t.since == "" {
			t.since = list.ResourceVersion
		}
		return list, err
	})
	pages.PageSize = pageSize
	return pages.EachListItem(ctx, metav1.ListOptions{FieldSelector: kube.EventSelector}, func(obj runtime.Object) error {
		e, ok := obj.(*corev1.Event)
		if !ok {
			return nil
		}
		t.total++
		if w, ok := kube.EventWriter(e); ok {
			t.writers[w.Manager]++
			if foreign(w) && r.term.includes(e.LastTimestamp.Time) {
				t.term = append(t.term, eventOf(e, w))
			}
		}
		return nil
	})
}

func foreign(w kube.Writer) bool { return w.Manager != kube.FieldManager && !kube.IsKubectl(w.Manager) }

func eventOf(e *corev1.Event, w kube.Writer) string {
	return fmt.Sprintf("event %s/%s: %s emitted %s on %s %s at %s", e.Namespace, e.Name, w.Manager, e.Reason,
		strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.LastTimestamp.Format(time.RFC3339))
}

var errWatchEnded = errors.New("the watch ended early")

// observe watches the three resources from the listed versions on.
func (r *run) observe(ctx context.Context, w *writers) error {
	nodes, err := r.Clients.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: w.reports.since})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer nodes.Stop()
	attachments, err := r.Clients.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{ResourceVersion: w.attachments.since})
	if err != nil {
		return fmt.Errorf("watch volumeattachments: %w", err)
	}
	defer attachments.Stop()
	events, err := r.Clients.CoreV1().Events("").Watch(ctx, metav1.ListOptions{FieldSelector: kube.EventSelector, ResourceVersion: w.events.since})
	if err != nil {
		return fmt.Errorf("watch events: %w", err)
	}
	defer events.Stop()
	end := time.NewTimer(r.Observe)
	defer end.Stop()
	for {
		var e watch.Event
		var ok bool
		select {
		case e, ok = <-nodes.ResultChan():
		case e, ok = <-attachments.ResultChan():
		case e, ok = <-events.ResultChan():
		case <-end.C:
			return w.drain(nodes, attachments, events)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := w.handle(e, ok); err != nil {
			return err
		}
	}
}

// drain handles the events that have arrived: on a busy machine, the time may end before the first is handled.
func (w *writers) drain(watches ...watch.Interface) error {
	for _, one := range watches {
		for arrived := true; arrived; {
			select {
			case e, ok := <-one.ResultChan():
				if err := w.handle(e, ok); err != nil {
					return err
				}
			default:
				arrived = false
			}
		}
	}
	return nil
}

// handle records an event of a watch, or returns that the watch has ended.
func (w *writers) handle(e watch.Event, ok bool) error {
	switch {
	case !ok:
		return errWatchEnded
	case e.Type == watch.Error:
		return fmt.Errorf("watch: %w", apierrors.FromObject(e.Object))
	case e.Type != watch.Deleted:
		w.see(e.Object)
	}
	return nil
}

// see records an object that was created or changed.
func (w *writers) see(obj runtime.Object) {
	switch obj := obj.(type) {
	case *corev1.Node:
		before, _ := w.reports.known[obj.Name].([]corev1.AttachedVolume)
		w.reports.known[obj.Name] = obj.Status.VolumesAttached
		if writer, ok := kube.ReportWriter(obj); ok && !slices.Equal(before, obj.Status.VolumesAttached) {
			w.reports.wrote(writer, fmt.Sprintf("node %s: %s changed status.volumesAttached", obj.Name, writer.Manager))
		}
	case *storagev1.VolumeAttachment:
		before := w.attachments.known[obj.Name]
		w.attachments.known[obj.Name] = true
		if writer, ok := kube.AttachmentCreator(obj); ok && before == nil {
			w.attachments.wrote(writer, fmt.Sprintf("volumeattachment %s: %s created it for node %s", obj.Name, writer.Manager, obj.Spec.NodeName))
		}
	case *corev1.Event:
		if writer, ok := kube.EventWriter(obj); ok {
			w.events.wrote(writer, eventOf(obj, writer))
		}
	}
}

func (t *traces) wrote(w kube.Writer, what string) {
	switch {
	case kube.IsKubectl(w.Manager):
		t.byHand = append(t.byHand, what)
	case foreign(w):
		t.now = append(t.now, what)
	}
}
