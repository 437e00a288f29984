package charts

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// TestEachObjectIsRenderedOnce: whatever the namespaces are, no two objects of the chart have one name, of which the second would replace the first.
func TestEachObjectIsRenderedOnce(t *testing.T) {
	for name, values := range variants {
		for _, secrets := range []string{"", "default", "kube-node-lease"} {
			for _, release := range []string{"kube-system", "kube-node-lease", namespace} {
				values := values
				if secrets != "" {
					values = append(slices.Clone(values), "recovery.secrets[0].name=a,recovery.secrets[0].namespace="+secrets)
				}
				seen := map[string]bool{}
				for _, o := range renderIn(t, release, values...) {
					key := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
					if seen[key] {
						t.Errorf("%s in %s, secrets in %q: two objects %s", name, release, secrets, key)
					}
					seen[key] = true
				}
			}
		}
	}
}

// onCluster runs helm against the API server.
func onCluster(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../bin/helm", args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+apiserver.Kubeconfig(t, cluster.Config()))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestFencerInKubeSystem installs the chart in kube-system: the fencer has rights on its lease and on the Secrets that are named, which are elsewhere.
func TestFencerInKubeSystem(t *testing.T) {
	cluster.Start(t)
	out, err := onCluster(t, "install", "belay", "belay", "--namespace", "kube-system", "--set", "controller.enabled=false,recovery.enabled=true,recovery.secrets[0].name=bmc,recovery.secrets[0].namespace=default", "--wait=false",
		"--take-ownership") // another test of this API server may have left its CustomResourceDefinitions
	if err != nil {
		t.Fatalf("helm install: %v\n%s", err, out)
	}
	fencer := apiserver.ServiceAccountName("kube-system", "belay-recovery-fencer")
	secret := func(namespace, name string) bool { return may(t, fencer, namespace, "get", "", "secrets", name) }
	wait.Until(t, "the fencer may read what is named", func() bool {
		return secret("default", "bmc") && may(t, fencer, "kube-system", "update", "coordination.k8s.io", "leases", "belay-recovery-fencer")
	})
	if secret("default", "other") || secret("kube-system", "bmc") || secret("kube-system", "other") {
		t.Error("the fencer may read Secrets that are not named")
	}
	out, err = uninstall(t, "belay", "kube-system", true)
	if err != nil {
		t.Fatalf("helm uninstall: %v\n%s", err, out)
	}
}

// may reports whether RBAC grants a user a verb on an object.
func may(t *testing.T, user, namespace, verb, group, resource, name string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: group, Resource: resource, Name: name},
	}}
	must(t, cluster.Client.Create(t.Context(), review))
	return review.Status.Allowed
}

// TestInstallAgain: the CustomResourceDefinitions that an uninstalled release left belong to the next one, in another namespace, with --take-ownership.
func TestInstallAgain(t *testing.T) {
	cluster.Start(t)
	for _, release := range []string{"first", "second"} {
		ns := "again-" + release
		must(t, cluster.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		out, err := onCluster(t, "install", release, "belay", "--namespace", ns, "--set", "controller.enabled=false,recovery.enabled=true", "--wait=false", "--take-ownership")
		if err != nil {
			t.Fatalf("helm install: %v\n%s", err, out)
		}
		if out, err := uninstall(t, release, ns, true); err != nil {
			t.Errorf("helm uninstall: %v\n%s", err, out)
		}
	}
}

// TestUpstreamMustBeDisabled: the controller is not rendered until its user has stated that the other one is off; recovery alone needs no word.
func TestUpstreamMustBeDisabled(t *testing.T) {
	for _, values := range [][]string{{"controller.upstreamDisabled=false"}, {"controller.upstreamDisabled=null"}, {"controller.upstreamDisabled=false", "recovery.enabled=true"}} {
		if _, err := helm(t, values...); err == nil || !strings.Contains(err.Error(), "docs/migrate.md") || !strings.Contains(err.Error(), "preflight") {
			t.Errorf("%q: %v", values, err)
		}
	}
	if _, err := helm(t, "controller.upstreamDisabled=false", "controller.enabled=false", "recovery.enabled=true"); err != nil {
		t.Error(err)
	}
}

// TestNetworkPolicyPorts: traces reach their collector, DNS and kubelets are at the ports that are stated, and no rule is without ports or peers, which would allow all.
func TestNetworkPolicyPorts(t *testing.T) {
	seen := 0
	for _, o := range render(t, "recovery.enabled=true", "networkPolicy.enabled=true", stated, "networkPolicy.dnsPorts={53,5353}", "networkPolicy.kubeletPort=10255",
		"networkPolicy.extraEgress[0].ports[0].port=4317,networkPolicy.extraEgress[0].to[0].podSelector.matchLabels.a=b") {
		if o.GetKind() != "NetworkPolicy" {
			continue
		}
		seen++
		var p networkingv1.NetworkPolicy
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
		var ports []string
		for _, i := range p.Spec.Ingress {
			if len(i.Ports) == 0 || len(i.From) == 0 {
				t.Errorf("%s: a rule of ingress without ports or peers, which allows all: %v", p.Name, i)
			}
			if i.Ports[0].Port.IntValue() == 8080 {
				t.Errorf("%s: metrics are open to %v, and no peer is stated", p.Name, i.From)
			}
		}
		for _, e := range p.Spec.Egress {
			if len(e.Ports) == 0 || len(e.To) == 0 {
				t.Errorf("%s: a rule of egress without ports or peers, which allows all: %v", p.Name, e)
			}
			for _, port := range e.Ports {
				ports = append(ports, port.Port.String())
			}
		}
		for _, port := range []string{"53", "5353", "443", "4317", "10255"} {
			if !slices.Contains(ports, port) {
				t.Errorf("%s: no way out to port %s: %v", p.Name, port, ports)
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d NetworkPolicies", seen)
	}
}

// TestDrainOfPodsThatAreNotReady: pods that are not ready (halted, or refused) never block a drain.
func TestDrainOfPodsThatAreNotReady(t *testing.T) {
	seen := 0
	for _, o := range render(t, "recovery.enabled=true") {
		if o.GetKind() != "PodDisruptionBudget" {
			continue
		}
		seen++
		var p policyv1.PodDisruptionBudget
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
		if p.Spec.UnhealthyPodEvictionPolicy == nil || *p.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
			t.Errorf("%s: unhealthyPodEvictionPolicy %v", p.Name, p.Spec.UnhealthyPodEvictionPolicy)
		}
	}
	if seen != 3 {
		t.Errorf("%d PodDisruptionBudgets", seen)
	}
}

// controllerOf returns the container of belay-controller.
func controllerOf(t *testing.T, values ...string) corev1.Container {
	t.Helper()
	for _, o := range render(t, values...) {
		if o.GetKind() == "Deployment" && o.GetName() == "belay-controller" {
			var d appsv1.Deployment
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			return d.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("no Deployment")
	return corev1.Container{}
}

// TestMemoryLimit: GOMEMLIMIT follows the memory limit, or is stated beside it; a limit that it cannot be derived from is refused.
func TestMemoryLimit(t *testing.T) {
	const limit = "controller.resources.limits.memory="
	for _, tc := range []struct{ values, want string }{
		{limit + "1Gi", "900MiB"},
		{limit + "512Mi", "460MiB"},
		{limit + "2Gi", "1800MiB"},
		{limit + "null", ""},
		{limit + "2G,controller.memoryLimit=1700MiB", "1700MiB"},
	} {
		got := ""
		for _, env := range controllerOf(t, tc.values).Env {
			if env.Name == "GOMEMLIMIT" {
				got = env.Value
			}
		}
		if got != tc.want {
			t.Errorf("%s: GOMEMLIMIT=%s, want %s", tc.values, got, tc.want)
		}
	}
}

// TestArgumentsAreStrings: an argument is passed as it was written.
func TestArgumentsAreStrings(t *testing.T) {
	for _, arg := range []string{"--a=b: c", "--a=b #c", `--a="b"`, "- a"} {
		if args := controllerOf(t, "controller.extraArgs[0]="+arg).Args; !slices.Contains(args, arg) {
			t.Errorf("%q is not an argument as it was written: %q", arg, args)
		}
	}
}
