package simulation

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apiClient is the controller's client, and what it reads with past its caches.
type apiClient struct {
	client.Client // what the controller does not use is not there

	sim *sim
	by  *actor
}

func (c apiClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	k := kindOf(obj)
	if key.Name == recordsLease {
		// No controller was there before belay's.
		obj.(*coordinationv1.Lease).Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		return nil
	}
	answer, err := c.by.send(ctx, fmt.Sprintf("GET %s %s", k, key.Name), true, func(r *request) (any, error) {
		if k == "Lease" {
			return c.sim.lease(key.Name)
		}
		stored, ok := c.sim.api.objects[k][key.Name]
		if !ok {
			if k == nodes && !r.late.Load() {
				r.by.heard[key.Name] = c.sim.api.version
			}
			return nil, apierrors.NewNotFound(resource(k), key.Name)
		}
		return stored, nil
	})
	return into(obj, answer, err)
}

// into copies an answer to where the caller wants it.
func into(obj client.Object, answer any, err error) error {
	if err != nil {
		return err
	}
	stored := answer.(client.Object).DeepCopyObject()
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(stored).Elem())
	return nil
}

// List answers the start of a new leader: one object, or none, of those that fit.
func (c apiClient) List(ctx context.Context, found client.ObjectList, opts ...client.ListOption) error {
	page, ok := found.(*metav1.PartialObjectMetadataList)
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if !ok || options.Limit != 1 && options.FieldSelector == nil {
		return fmt.Errorf("the simulation lists the metadata of one object, not %T", found)
	}
	k := kind(page.Kind[:len(page.Kind)-len("List")])
	what := "LIST " + string(k)
	if options.FieldSelector != nil {
		what += " " + options.FieldSelector.String()
	}
	answer, err := c.by.send(ctx, what, true, func(*request) (any, error) {
		out := metav1.PartialObjectMetadataList{TypeMeta: page.TypeMeta}
		out.ResourceVersion = strconv.Itoa(c.sim.api.version)
		for _, name := range slices.Sorted(maps.Keys(c.sim.api.objects[k])) {
			if options.FieldSelector != nil && !options.FieldSelector.Matches(fields.Set{metav1.ObjectNameField: name}) {
				continue
			}
			obj := c.sim.api.objects[k][name]
			out.Items = append(out.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
			}})
			if len(out.Items) == int(options.Limit) {
				break
			}
		}
		return out, nil
	})
	if err == nil {
		*page = answer.(metav1.PartialObjectMetadataList)
	}
	return err
}

func (c apiClient) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	sent := obj.DeepCopyObject().(client.Object)
	if c.sim.strips && c.sim.anonymous[c.sim.api.uids%len(c.sim.anonymous)] {
		sent.SetAnnotations(nil) // as upstream's controller makes them
	}
	answer, err := c.by.send(ctx, fmt.Sprintf("CREATE %s %s", kindOf(obj), short(obj.GetName())), false, func(r *request) (any, error) {
		return c.sim.api.create(r.by, r, sent)
	})
	return into(obj, answer, err)
}

// recordsLease says that all attachments are recorded.
const recordsLease = "records"

// Update is of that Lease alone.
func (c apiClient) Update(context.Context, client.Object, ...client.UpdateOption) error { return nil }

func (c apiClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	options := (&client.DeleteOptions{}).ApplyOptions(opts)
	k, p := kindOf(obj), options.Preconditions
	what := fmt.Sprintf("DELETE %s %s", k, short(obj.GetName()))
	if p != nil && p.ResourceVersion != nil {
		what += " at " + *p.ResourceVersion
	}
	_, err := c.by.send(ctx, what, false, func(r *request) (any, error) {
		c.sim.judgePreconditions(r, p)
		return nil, c.sim.api.remove(r.by, r, k, obj.GetName(), p)
	})
	return err
}

func (c apiClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.patch(ctx, obj, patch)
}

func (c apiClient) patch(ctx context.Context, obj client.Object, patch client.Patch) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	answer, err := c.by.sendPatch(ctx, c.sim, kindOf(obj), obj.GetName(), patch.Type(), body, true)
	return into(obj, answer, err)
}

// sendPatch sends a patch; bound ones have to carry the version that was decided on.
func (a *actor) sendPatch(ctx context.Context, s *sim, k kind, name string, form types.PatchType, body []byte, bound bool) (any, error) {
	return a.send(ctx, fmt.Sprintf("PATCH %s %s %s", k, short(name), body), false, func(r *request) (any, error) {
		s.judgePatch(r, body, bound)
		stored, err := s.api.patch(r.by, r, k, name, form, body)
		if apierrors.IsNotFound(err) && k == nodes && !r.late.Load() {
			r.by.heard[name] = s.api.version
		}
		if err != nil {
			return nil, err
		}
		return stored, nil
	})
}

// short cuts the digest in the name of an attachment.
func short(name string) string { return name[:min(len(name), 10)] }

func (c apiClient) Status() client.SubResourceWriter { return statusClient{apiClient: c} }

type statusClient struct {
	client.SubResourceWriter

	apiClient apiClient
}

func (c statusClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return c.apiClient.patch(ctx, obj, patch)
}
