package cluster

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"belay.dev/belay/deploy"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/labdisk"
)

// own are the lab's own documents: namespaces, what upstream's sidecars may do (the rules that
// they ship), the drivers and their storage classes.
//
//go:embed manifests/*.yaml
var own embed.FS

// clusterKinds are what the lab takes of deploy/: rights, and the priority of requests. The Deployments beside them
// are for clusters that run containers; the lab runs the programs itself.
var clusterKinds = []string{"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "FlowSchema"}

// optionalSuffix ends the names of documents that give more rights than every cluster needs.
const optionalSuffix = "-secrets.yaml"

// documents are all objects that a lab with these options begins with.
func documents(o Options) ([]*unstructured.Unstructured, error) {
	all, err := readDocuments(own, "manifests")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(object *unstructured.Unstructured) bool { return !wanted(object, o.Drivers) })
	if o.StorageEvidence {
		for _, object := range all {
			if object.GetKind() == "CSIDriver" && object.GetName() == labdisk.DriverDisk {
				object.SetAnnotations(map[string]string{kube.CutsAtUnpublishAnnotation: "true"})
			}
		}
	}
	kinds := clusterKinds
	dirs := []string{"belay-controller", "belay-attacher"}
	if o.Plane == PlaneUpstream {
		dirs = nil // a cluster that has never seen belay, so that a chart can be installed in it
	}
	if o.Recovery != "" {
		dirs = append(dirs, recoveryDir)
		kinds = append(slices.Clone(kinds), "CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
	}
	for _, dir := range dirs {
		shipped, err := readDocuments(deploy.Files, dir)
		if err != nil {
			return nil, err
		}
		for _, object := range shipped {
			if slices.Contains(kinds, object.GetKind()) {
				all = append(all, object)
			}
		}
	}
	return lastOfEach(all), nil
}

// shippedEnv are the settings of the Go runtime that a program of belay is shipped with.
func shippedEnv(program string) []string {
	objects, err := readDocuments(deploy.Files, program)
	if err != nil {
		panic(err) // the documents are part of this program
	}
	var env []string
	for _, object := range objects {
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		for _, container := range containers {
			variables, _, _ := unstructured.NestedSlice(container.(map[string]any), "env")
			for _, variable := range variables {
				v := variable.(map[string]any)
				if name := fmt.Sprint(v["name"]); name == "GOGC" || name == "GOMEMLIMIT" {
					env = append(env, name+"="+fmt.Sprint(v["value"]))
				}
			}
		}
	}
	return env
}

// lastOfEach leaves one document of each object: namespaces come with several folders, and they
// are all applied at the same time.
func lastOfEach(all []*unstructured.Unstructured) []*unstructured.Unstructured {
	type identity struct{ kind, namespace, name string }
	place := map[identity]int{}
	var kept []*unstructured.Unstructured
	for _, object := range all {
		id := identity{object.GetKind(), object.GetNamespace(), object.GetName()}
		if at, again := place[id]; again {
			kept[at] = object
			continue
		}
		place[id] = len(kept)
		kept = append(kept, object)
	}
	return kept
}

// wanted leaves out the driver and classes of drivers that do not run.
func wanted(object *unstructured.Unstructured, drivers []string) bool {
	var driver string
	switch object.GetKind() {
	case "CSIDriver":
		driver = object.GetName()
	case "StorageClass":
		driver, _, _ = unstructured.NestedString(object.Object, "provisioner")
	default:
		return true
	}
	return slices.Contains(drivers, driver)
}

func readDocuments(files fs.FS, dir string) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(files, path.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("listing documents in %s: %w", dir, err)
	}
	var all []*unstructured.Unstructured
	for _, name := range names {
		if strings.HasSuffix(name, optionalSuffix) {
			continue
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			var raw map[string]any
			err := decoder.Decode(&raw)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", name, err)
			}
			if len(raw) > 0 {
				all = append(all, &unstructured.Unstructured{Object: raw})
			}
		}
	}
	return all, nil
}

// fieldManager owns what the lab applies.
const fieldManager = "belay-lab"

// applyAll puts the documents into the cluster: namespaces first, then the others side by side.
func applyAll(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a discovery client: %w", err)
	}
	groups, err := restmapper.GetAPIGroupResources(discoveryClient)
	if err != nil {
		return fmt.Errorf("asking the API server for its resources: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a dynamic client: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, namespaces := range []bool{true, false} {
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(16)
		for _, object := range objects {
			if (object.GetKind() == "Namespace") == namespaces {
				group.Go(func() error { return apply(groupCtx, client, mapper, object) })
			}
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func apply(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return fmt.Errorf("finding the resource of %s %s: %w", kind.Kind, object.GetName(), err)
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	content, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding %s %s: %w", kind.Kind, object.GetName(), err)
	}
	force := true
	if _, err := resource.Patch(ctx, object.GetName(), types.ApplyPatchType, content,
		metav1.PatchOptions{FieldManager: fieldManager, Force: &force}); err != nil {
		return fmt.Errorf("applying %s %s: %w", kind.Kind, object.GetName(), err)
	}
	return nil
}
