package charts

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
)

// TestHostileEachObjectOnce: whatever the namespace of the release is, no two objects of the chart have one name: the second would replace the first.
func TestHostileEachObjectOnce(t *testing.T) {
	for _, values := range [][]string{
		{"--namespace", "kube-system", "--set", "recovery.enabled=true"},
		{"--namespace", "kube-system", "--set", "recovery.enabled=true,recovery.together=true,controller.enabled=false"},
		{"--namespace", "belay-system", "--set", "recovery.enabled=true,recovery.secretNamespaces={kube-system}"},
		{"--namespace", "belay-system", "--set", "recovery.enabled=true,recovery.secretNamespaces={kube-node-lease}"},
	} {
		out, err := exec.CommandContext(t.Context(), "../bin/helm", append([]string{"template", "belay", "belay"}, values...)...).Output()
		must(t, err)
		seen := map[string]bool{}
		for _, doc := range strings.Split(string(out), "\n---\n") {
			var o metav1.PartialObjectMetadata
			if yaml.Unmarshal([]byte(doc), &o) != nil || o.Kind == "" {
				continue
			}
			key := o.Kind + " " + o.Namespace + "/" + o.Name
			if seen[key] {
				t.Errorf("%v: two objects %s", values, key)
			}
			seen[key] = true
		}
	}
}

// TestHostileKubeSystem installs the chart in kube-system with helm on a real API server: the fencer must have both the secrets and its lease.
func TestHostileKubeSystem(t *testing.T) {
	cluster.Start(t)
	config := apiserver.Kubeconfig(t, cluster.Config())
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "../bin/helm", args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+config)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("install", "belay", "belay", "--namespace", "kube-system", "--set", "recovery.enabled=true", "--wait=false")
	t.Cleanup(func() { _, _ = run("uninstall", "belay", "--namespace", "kube-system") })
	if err != nil {
		t.Fatalf("helm install in kube-system: %v\n%s", err, out)
	}
	var role rbacv1.Role
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "belay-recovery-fencer"}, &role))
	has := fmt.Sprint(role.Rules)
	for _, want := range []string{"secrets", "leases"} {
		if !strings.Contains(has, want) {
			t.Errorf("the fencer has no right on %s: %s", want, has)
		}
	}
}

// TestHostileReinstall: a release that was uninstalled can be installed again under another name or in another namespace.
func TestHostileReinstall(t *testing.T) {
	cluster.Start(t)
	config := apiserver.Kubeconfig(t, cluster.Config())
	for _, release := range []string{"belay", "storage"} {
		ns := "reinstall-" + release
		must(t, cluster.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		for _, args := range [][]string{
			{"install", release, "belay", "--namespace", ns, "--set", "recovery.enabled=true", "--wait=false"},
			{"uninstall", release, "--namespace", ns, "--wait=watcher", "--timeout=20s"},
		} {
			if args[0] == "uninstall" {
				args = args[:4]
			}
			cmd := exec.CommandContext(t.Context(), "../bin/helm", args...)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+config)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("helm %v: %v\n%s", args, err, out)
			}
		}
	}
}

// TestHostileNetworkPolicyLetsTracesOut: the chart is told where the collector is; its own NetworkPolicy must not block it.
func TestHostileNetworkPolicyLetsTracesOut(t *testing.T) {
	for _, o := range render(t, "networkPolicy.enabled=true", "env[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,env[0].value=http://collector:4317") {
		if o.GetKind() != "NetworkPolicy" {
			continue
		}
		var p networkingv1.NetworkPolicy
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
		var ports []string
		for _, e := range p.Spec.Egress {
			for _, port := range e.Ports {
				ports = append(ports, port.Port.String())
			}
		}
		if !slices.Contains(ports, "4317") {
			t.Errorf("%s: no way out to the collector: %v", p.Name, ports)
		}
	}
}

// TestHostileDrainOfPodsThatAreNotReady: pods that are not ready (halted, or refused) never block a drain.
func TestHostileDrainOfPodsThatAreNotReady(t *testing.T) {
	for _, o := range render(t) {
		if o.GetKind() != "PodDisruptionBudget" {
			continue
		}
		var p policyv1.PodDisruptionBudget
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
		if p.Spec.UnhealthyPodEvictionPolicy == nil || *p.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
			t.Errorf("%s: unhealthyPodEvictionPolicy %v", p.Name, p.Spec.UnhealthyPodEvictionPolicy)
		}
	}
}

// TestHostileValues: values that make two controllers lead at once, or a Deployment that the API server refuses, are refused by the schema.
func TestHostileValues(t *testing.T) {
	for _, value := range []string{
		"controller.extraArgs={--leader-elect=false}",
		"podLabels.app\\.kubernetes\\.io/name=x",
		"hostNetwork.enabled=true,hostNetwork.firstPort=80",
		"controller.resources.limits.memory=512Mi", // GOMEMLIMIT stays 900MiB
		"networkPolicy.enabled=true,networkPolicy.apiServerPorts=null",
	} {
		if out, err := helm(t, value); err == nil {
			t.Errorf("%s is accepted (%d bytes)", value, len(out))
		}
	}
}

// TestHostileArgsAreStrings: an argument is passed as it was written.
func TestHostileArgsAreStrings(t *testing.T) {
	for _, arg := range []string{"--a=b: c", "--a=b #c"} {
		cmd := exec.CommandContext(t.Context(), "../bin/helm", "template", "belay", "belay", "--set-json", fmt.Sprintf("controller.extraArgs=[%q]", arg))
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%q: %v", arg, err)
			continue
		}
		var found bool
		for _, doc := range strings.Split(string(out), "\n---\n") {
			var d struct {
				Kind string
				Spec struct {
					Template struct {
						Spec struct{ Containers []struct{ Args []any } }
					}
				}
			}
			if yaml.Unmarshal([]byte(doc), &d) == nil && d.Kind == "Deployment" {
				found = found || slices.Contains(d.Spec.Template.Spec.Containers[0].Args, any(arg))
			}
		}
		if !found {
			t.Errorf("%q is not an argument as it was written", arg)
		}
	}
}
