// Package charts tests the Helm chart against a real API server.
package charts

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

const namespace = "belay-chart"

var cluster apiserver.Server

func TestMain(m *testing.M) {
	cluster.Prepare = func(tb testing.TB) {
		tb.Helper()
		cluster.Apply(tb, "testdata/monitoring-crds.yaml")
		for _, kind := range []string{"PodMonitor", "PrometheusRule"} {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion("monitoring.coreos.com/v1")
			list.SetKind(kind + "List")
			wait.Until(tb, kind+" is served", func() bool { return cluster.Client.List(context.Background(), list) == nil })
		}
		must(tb, cluster.Client.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		}}))
		must(tb, cluster.Client.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "medik8s-leases"}})) // medik8s' operators create it
	}
	os.Exit(cluster.Main(m))
}

// render returns the objects of the chart with some values. The program is the helm that `make bin/helm` builds.
func render(t *testing.T, values ...string) []*unstructured.Unstructured {
	t.Helper()
	return renderIn(t, namespace, values...)
}

// renderIn is render for a release in some namespace.
func renderIn(t *testing.T, release string, values ...string) []*unstructured.Unstructured {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	out, err := helmIn(t, release, values...)
	must(t, err)
	must(t, os.WriteFile(file, []byte(out), 0o600))
	return apiserver.Manifests(t, file)
}

func helm(t *testing.T, values ...string) (string, error) {
	t.Helper()
	return helmIn(t, namespace, values...)
}

// helmIn renders the chart for a release in some namespace, of a cluster where kube-controller-manager does not attach unless values say so.
func helmIn(t *testing.T, release string, values ...string) (string, error) {
	t.Helper()
	if !apiserver.Available() {
		t.Skip("NOT RUN: needs the programs that `make test` builds")
	}
	args := []string{"template", "belay", "belay", "--namespace", release, "--set", "controller.upstreamDisabled=true"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "../bin/helm", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), err
}

// onHost is the variant that no restricted namespace admits.
const onHost = "in the network of the host"

// stated are the addresses that a NetworkPolicy needs.
const stated = "networkPolicy.apiServerCIDRs={192.0.2.1/32},networkPolicy.nodeCIDRs={192.0.2.0/24}," +
	"networkPolicy.powerSwitches[0].to[0].ipBlock.cidr=198.51.100.0/24,networkPolicy.powerSwitches[0].ports[0].protocol=UDP,networkPolicy.powerSwitches[0].ports[0].port=623"

// variants are values that change what the chart installs.
var variants = map[string][]string{
	"the controller": nil,
	"recovery":       {"controller.enabled=false", "recovery.enabled=true", "recovery.dryRun=true"},
	"recovery in one Deployment": {
		"controller.enabled=false", "recovery.enabled=true", "recovery.together=true", "recovery.secrets[0].name=bmc,recovery.secrets[0].namespace=default",
	},
	"both, with all that is optional": {
		"recovery.enabled=true", "networkPolicy.enabled=true", stated, "podMonitor.enabled=true", "prometheusRule.enabled=true", "dashboards.enabled=true", "dashboards.annotations.grafana_folder=Storage", "createNamespace=true",
		"attacher.serviceAccounts[0].namespace=csi,attacher.serviceAccounts[0].name=ebs,attacher.serviceAccounts[0].drivers={ebs.csi.aws.com,efs.csi.aws.com}", "nodeSelector.a=b", "podLabels.team=x", "podAnnotations.a=b",
		"env[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,env[0].value=http://collector:4317", "imagePullSecrets[0].name=x",
		"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b", "networkPolicy.extraEgress[0].ports[0].port=4317,networkPolicy.extraEgress[0].to[0].podSelector.matchLabels.a=b", "networkPolicy.dnsPorts={53,5353}", "controller.extraArgs={--v=2}", "recovery.extraArgs={--v=2}",
	},
	"recovery beside medik8s":               {"controller.enabled=false", "recovery.enabled=true", "recovery.medik8s.enabled=true"},
	onHost:                                  {"recovery.enabled=true", "hostNetwork.enabled=true"},
	"one pod, without what can be left out": {"controller.replicas=1", "flowSchemas=false", "podDisruptionBudgets=false", "tolerations=null", "metrics.secure=false"},
}

// TestObjectsAreAccepted sends each object to the API server as a server-side dry run, with strict validation of fields.
func TestObjectsAreAccepted(t *testing.T) {
	cluster.Start(t)
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			objects := render(t, values...)
			for _, o := range objects {
				if o.GetKind() == "CustomResourceDefinition" || o.GetKind() == "Namespace" {
					continue // what depends on them would be refused in a dry run
				}
				named := o.DeepCopy()
				named.SetName("a-" + o.GetName()) // the API server of these tests has policies of the chart already
				err := cluster.Client.Create(t.Context(), named, client.DryRunAll, client.FieldValidation("Strict"))
				if err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
		})
	}
}

// TestPodsAreRestricted: the pods of all Deployments and Jobs are admitted to a namespace that enforces the restricted Pod Security Standard.
func TestPodsAreRestricted(t *testing.T) {
	cluster.Start(t)
	wait.Until(t, "the namespace has its service account", func() bool {
		err := cluster.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
		return err == nil || apierrors.IsAlreadyExists(err)
	})
	for name, values := range variants {
		for _, o := range render(t, values...) {
			if !slices.Contains([]string{"Deployment", "Job"}, o.GetKind()) || name == onHost {
				continue
			}
			template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
			must(t, err)
			pod := &unstructured.Unstructured{Object: template}
			pod.SetAPIVersion("v1")
			pod.SetKind("Pod")
			pod.SetNamespace(namespace)
			pod.SetName(o.GetName())
			unstructured.RemoveNestedField(pod.Object, "spec", "serviceAccountName")
			must(t, unstructured.SetNestedField(pod.Object, "default", "spec", "serviceAccountName"))
			unstructured.RemoveNestedField(pod.Object, "spec", "priorityClassName") // allowed in kube-system alone by default quota rules of some clusters
			if err := cluster.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
				t.Errorf("%s: %s: %v", name, o.GetName(), err)
			}
			must(t, unstructured.SetNestedField(pod.Object, true, "spec", "hostNetwork"))
			if err := cluster.Client.Create(t.Context(), pod, client.DryRunAll); !apierrors.IsForbidden(err) {
				t.Errorf("%s: a pod on the network of the host is admitted, so the standard is not enforced: %v", name, err)
			}
		}
	}
}

// TestPortsOfTheHost: in the network of the host no two parts share a port, they serve at the pod's address alone, and an upgrade never waits
// for a port of the pod that it is to replace.
func TestPortsOfTheHost(t *testing.T) {
	for _, values := range [][]string{variants[onHost], {"hostNetwork.enabled=true", "controller.enabled=false", "recovery.enabled=true"}} {
		owner := map[int64]string{}
		for _, o := range render(t, values...) {
			if o.GetKind() != "Deployment" {
				continue
			}
			var d appsv1.Deployment
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			if pod := d.Spec.Template.Spec; !pod.HostNetwork || pod.DNSPolicy != corev1.DNSClusterFirstWithHostNet || d.Spec.Strategy.RollingUpdate.MaxSurge.IntValue() != 0 {
				t.Errorf("%s: hostNetwork %v, dnsPolicy %s, strategy %v", d.Name, pod.HostNetwork, pod.DNSPolicy, d.Spec.Strategy)
			}
			container := d.Spec.Template.Spec.Containers[0]
			for _, port := range container.Ports {
				if other := owner[int64(port.ContainerPort)]; other != "" {
					t.Errorf("%s and %s both have port %d", d.Name, other, port.ContainerPort)
				}
				owner[int64(port.ContainerPort)] = d.Name
				if at := fmt.Sprintf("-bind-address=[$(POD_IP)]:%d", port.ContainerPort); !strings.Contains(strings.Join(container.Args, " "), at) {
					t.Errorf("%s: no argument %s: %v", d.Name, at, container.Args)
				}
			}
		}
		if len(owner) != 6 {
			t.Errorf("%d ports, want two for each of three Deployments: %v", len(owner), owner)
		}
	}
}

// TestBothPartsShareNoRole: with the controller, recovery's actor is a part of it, and has no Deployment, no ServiceAccount and no lease of its own.
func TestBothPartsShareNoRole(t *testing.T) {
	objects := render(t, "recovery.enabled=true")
	for _, o := range objects {
		if strings.HasPrefix(o.GetName(), "belay-recovery-actor") && !slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}, o.GetKind()) {
			t.Errorf("%s %s beside the controller", o.GetKind(), o.GetName())
		}
		if o.GetKind() != "Deployment" || o.GetName() != "belay-controller" {
			continue
		}
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
		if !slices.Contains(args, "--controllers=attachdetach,recovery") || !slices.Contains(args, "--recovery-roles=actor") {
			t.Errorf("the controller runs with %q", args)
		}
	}
}

// TestAlertsOfWhatIsInstalled: each part has its group of alerts, and their links lead to where the user keeps the pages.
func TestAlertsOfWhatIsInstalled(t *testing.T) {
	for _, tc := range []struct {
		values []string
		want   []string
	}{
		{nil, []string{"belay-controller", "belay-attacher", "belay-node", "attach-detach", "kube-state-metrics"}},
		{
			[]string{"controller.enabled=false", "recovery.enabled=true", "prometheusRule.omitGroups={belay-node,kube-state-metrics}"},
			[]string{"belay-attacher", "attach-detach", "belay-recovery"},
		},
	} {
		objects := render(t, append(tc.values, "prometheusRule.enabled=true", "prometheusRule.runbookBaseURL=https://wiki.example/belay/")...)
		at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "PrometheusRule" })
		groups, _, _ := unstructured.NestedSlice(objects[at].Object, "spec", "groups")
		var names []string
		for _, group := range groups {
			name, _, _ := unstructured.NestedString(group.(map[string]any), "name")
			names = append(names, name)
			rules, _, _ := unstructured.NestedSlice(group.(map[string]any), "rules")
			for _, rule := range rules {
				link, _, _ := unstructured.NestedString(rule.(map[string]any), "annotations", "runbook_url")
				if !strings.HasPrefix(link, "https://wiki.example/belay/docs/") {
					t.Errorf("a rule of %s links to %q", name, link)
				}
			}
		}
		if !slices.Equal(names, tc.want) {
			t.Errorf("with %q: groups %q, want %q", tc.values, names, tc.want)
		}
	}
}

// TestDashboardsAreFound: each dashboard of deploy/dashboards is in a ConfigMap with the label that Grafana's sidecar looks for.
func TestDashboardsAreFound(t *testing.T) {
	found := map[string]string{}
	for _, o := range render(t, "dashboards.enabled=true") {
		if o.GetKind() != "ConfigMap" || o.GetLabels()["grafana_dashboard"] != "1" {
			continue
		}
		data, _, err := unstructured.NestedStringMap(o.Object, "data")
		must(t, err)
		maps.Copy(found, data)
	}
	files, err := filepath.Glob("../deploy/dashboards/*.json")
	must(t, err)
	if len(files) == 0 || len(found) != len(files) {
		t.Errorf("%d dashboards in ConfigMaps, %d files", len(found), len(files))
	}
	for _, file := range files {
		want, err := os.ReadFile(file)
		must(t, err)
		if found[filepath.Base(file)] != string(want) {
			t.Errorf("%s is not in a ConfigMap, or differs", file)
		}
	}
}

// TestValuesAreChecked: a value that does not exist, or has another type, is an error.
func TestValuesAreChecked(t *testing.T) {
	for value, want := range map[string]string{
		"contoller.enabled=false":                   "contoller",
		"controller.replicas=two":                   "replicas",
		"recovery.profile=faster":                   "profile",
		"recovery.enabled=yes-sure":                 "enabled",
		"prometheusRule.omitGroups={belay-attache}": "omitGroups",
		"prometheusRule.runbookBaseURL=wiki":        "runbookBaseURL",
		// Without an election both pods lead.
		"controller.extraArgs={--v=2,--leader-elect=false}":            "extraArgs",
		"recovery.enabled=true,recovery.extraArgs={--leader_elect=0}":  "extraArgs",
		"podLabels.app\\.kubernetes\\.io/name=x":                       "podLabels",
		"hostNetwork.enabled=true,hostNetwork.firstPort=80":            "firstPort",
		"controller.resources.limits.memory=1500M":                     "memoryLimit",
		"networkPolicy.enabled=true,networkPolicy.apiServerPorts=null": "apiServerPorts",
		"networkPolicy.enabled=true,networkPolicy.dnsPorts={}":         "dnsPorts",
		"networkPolicy.kubeletPort=0":                                  "kubeletPort",
		// A policy that allows all addresses.
		"networkPolicy.enabled=true": "apiServerCIDRs",
		"networkPolicy.enabled=true,networkPolicy.apiServerCIDRs={192.0.2.1/32}":                                             "nodeCIDRs",
		"recovery.enabled=true,networkPolicy.enabled=true," + stated[:strings.Index(stated, ",networkPolicy.powerSwitches")]: "powerSwitches",
		"networkPolicy.extraEgress[0].ports[0].port=4317":                                                                    "to",
		"networkPolicy.dns={}": "dns",
		// Passwords of other components.
		"recovery.enabled=true,recovery.secrets[0].name=a,recovery.secrets[0].namespace=kube-system": "kube-system",
		// A dry run of recovery that would install the controller alone.
		"recovery.dryRun=true":                       "recovery.enabled",
		"imageRegistry=https://registry.example.com": "imageRegistry",
		"imageRegistry=registry.example.com/belay/":  "imageRegistry",
		"imageTag=a b":                               "imageTag",
		"controller.digest=abc":                      "digest",
	} {
		if _, err := helm(t, value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
