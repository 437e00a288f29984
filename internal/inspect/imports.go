package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/far"
)

// importPage is how many objects a list of an import has.
const importPage = 500

// FARTemplates reads the templates of FAR, from one namespace or, for "", from all.
func (r *Reader) FARTemplates(ctx context.Context, namespace string) (found []far.Template, err error) {
	path := []string{"/apis", far.Group, far.Version}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	path = append(path, far.Resource)
	options := metav1.ListOptions{Limit: importPage}
	for {
		result := r.clients.CoreV1().RESTClient().Get().SetHeader("Accept", "application/json").Timeout(Timeout).AbsPath(path...).
			SpecificallyVersionedParams(&options, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).Do(ctx)
		err := result.Error()
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("this cluster has no FenceAgentsRemediationTemplates (%s/%s): name a file with -f", far.Group, far.Version)
		}
		if apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("%w; name a namespace with -n, or a file with -f", err)
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", far.Resource, err)
		}
		answer, err := result.Raw()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", far.Resource, err)
		}
		var list struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []far.Template  `json:"items"`
		}
		if err := json.Unmarshal(answer, &list); err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", far.Resource, err)
		}
		found = append(found, list.Items...)
		if options.Continue = list.Metadata.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// NodeNames reads the names of all Nodes.
func (r *Reader) NodeNames(ctx context.Context) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	options := metav1.ListOptions{Limit: importPage}
	for {
		list, err := r.clients.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return names, nil
		}
	}
}

// CreateSource creates a FenceSource, unless the node has one. It never changes one. dryRun asks the API server, and so the admission policy, to check
// the request and store nothing.
func (r *Reader) CreateSource(ctx context.Context, source *fencingv1.FenceSource, dryRun bool) (far.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	options, done := &metav1.CreateOptions{}, far.Created
	if dryRun {
		options.DryRun, done = []string{metav1.DryRunAll}, far.Accepted
	}
	err := r.fences.Post().Resource(string(diagnosis.FenceSources)).SpecificallyVersionedParams(options, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).Body(source).Do(ctx).Error()
	switch {
	case err == nil:
		return done, nil
	case apierrors.IsNotFound(err):
		return far.Refused, errors.New("this cluster has no FenceSources: install recovery first (docs/recovery/README.md)")
	case !apierrors.IsAlreadyExists(err):
		return far.Refused, err
	}
	old := &fencingv1.FenceSource{}
	if err := r.fences.Get().Resource(string(diagnosis.FenceSources)).Name(source.Name).Do(ctx).Into(old); err != nil {
		return far.Refused, fmt.Errorf("the node has a FenceSource, which cannot be read: %w", err)
	}
	if equality.Semantic.DeepEqual(old.Spec, source.Spec) {
		return far.Unchanged, nil
	}
	return far.Refused, errors.New("the node has another FenceSource, which is left as it is: change it by hand, or delete it first")
}
