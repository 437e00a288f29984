package inspect

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/diagnosis"
)

// groups are the API groups of the resources that have names to complete.
var groups = map[diagnosis.Resource]schema.GroupVersion{
	diagnosis.Pods: {Version: "v1"}, diagnosis.Claims: {Version: "v1"}, diagnosis.Volumes: {Version: "v1"}, diagnosis.Nodes: {Version: "v1"}, diagnosis.Namespaces: {Version: "v1"},
	diagnosis.Attachments: {Group: "storage.k8s.io", Version: "v1"}, diagnosis.Fences: fencingv1.GroupVersion,
	diagnosis.StatefulSets: {Group: "apps", Version: "v1"}, diagnosis.Deployments: {Group: "apps", Version: "v1"}, diagnosis.ReplicaSets: {Group: "apps", Version: "v1"},
	diagnosis.DaemonSets: {Group: "apps", Version: "v1"}, diagnosis.Jobs: {Group: "batch", Version: "v1"},
}

// maxNames limits the names that are read: a longer list is no help to a person.
const maxNames = 500

// Names lists the names of objects, for the completion of a shell: at most maxNames, in one request without the objects themselves.
func Names(ctx context.Context, config *rest.Config, resource diagnosis.Resource, namespace string) ([]string, error) {
	version, ok := groups[resource]
	if !ok {
		return nil, fmt.Errorf("list names of %s: no such resource", resource)
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	list, err := client.Resource(version.WithResource(string(resource))).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: maxNames})
	if err != nil {
		return nil, fmt.Errorf("list names of %s: %w", resource, err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
