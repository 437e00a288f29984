package charts

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/wait"
)

// leave is the Job that Helm runs before it deletes a release with recovery. internal/rights and cmd/belay-controller test its program.
const leave = "belay-recovery-leave"

// uninstall runs helm uninstall, and ends the Job as a kubelet would whose container succeeded or failed.
func uninstall(t *testing.T, release, ns string, succeeds bool) (string, error) {
	t.Helper()
	type answer struct {
		out string
		err error
	}
	done := make(chan answer, 1)
	job := &batchv1.Job{}
	must(t, client.IgnoreNotFound(cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: leave}, job)))
	old := job.UID
	go func() {
		out, err := onCluster(t, "uninstall", release, "--namespace", ns, "--timeout=2m")
		done <- answer{out, err}
	}()
	wait.Until(t, "Helm has created the Job", func() bool {
		return cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: leave}, job) == nil && job.UID != old && job.DeletionTimestamp == nil
	})
	kinds, now := []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed}, metav1.Now()
	if succeeds {
		kinds = []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete}
		job.Status.CompletionTime = &now
	}
	job.Status.StartTime = &now
	for _, kind := range kinds {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	must(t, cluster.Client.Status().Update(t.Context(), job))
	a := <-done
	return a.out, a.err
}

// TestUninstall (issue 49, point 11): if the Job fails, Helm deletes nothing, and the Job stays for its log; if it succeeds, the CustomResourceDefinitions stay, and with them the
// policy that guards statements and its binding.
func TestUninstall(t *testing.T) {
	cluster.Start(t)
	const ns = "belay-uninstall"
	must(t, cluster.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	if out, err := onCluster(t, "install", "leaving", "belay", "--namespace", ns, "--set", "controller.enabled=false,recovery.enabled=true", "--wait=false", "--take-ownership"); err != nil {
		t.Fatalf("helm install: %v\n%s", err, out)
	}
	there := func(apiVersion, kind, namespace, name string) bool {
		t.Helper()
		o := &unstructured.Unstructured{}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	if there("batch/v1", "Job", ns, leave) || there("rbac.authorization.k8s.io/v1", "ClusterRole", "", leave) {
		t.Error("the Job or its rights are there before the release is uninstalled")
	}
	if out, err := uninstall(t, "leaving", ns, false); err == nil {
		t.Errorf("helm uninstall succeeds although the Job failed: %s", out)
	}
	if !there("apps/v1", "Deployment", ns, "belay-recovery-actor") || !there("batch/v1", "Job", ns, leave) {
		t.Error("the Job refused, and the actor or the Job is gone")
	}
	if out, err := uninstall(t, "leaving", ns, true); err != nil {
		t.Errorf("helm uninstall: %v\n%s", err, out)
	}
	for _, gone := range []string{"apps/v1 Deployment belay-recovery-actor", "apps/v1 Deployment belay-recovery-detector", "batch/v1 Job " + leave, "v1 ServiceAccount " + leave} {
		of := strings.Fields(gone)
		wait.Until(t, gone+" is gone", func() bool { return !there(of[0], of[1], ns, of[2]) })
	}
	const admission = "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy"
	for _, stays := range []string{
		"apiextensions.k8s.io/v1 CustomResourceDefinition nodefences.fencing.belay.dev", "apiextensions.k8s.io/v1 CustomResourceDefinition fencesources.fencing.belay.dev",
		admission + " belay-fence-request", admission + "Binding belay-fence-request",
		admission + " belay-fence-source", admission + "Binding belay-fence-source",
		admission + " belay-fence-statement", admission + "Binding belay-fence-statement",
	} {
		if of := strings.Fields(stays); !there(of[0], of[1], "", of[2]) {
			t.Errorf("%s is gone", stays)
		}
	}
}

// TestLeaveAsks: the Job takes the lease by which the detector of the release leads, and runs as its other pods do.
func TestLeaveAsks(t *testing.T) {
	for values, lease := range map[string]string{"recovery.together=false": "belay-recovery-detector", "recovery.together=true": "belay-recovery"} {
		var job batchv1.Job
		var detects bool
		for _, o := range render(t, "controller.enabled=false", "recovery.enabled=true", "podLabels.team=x", "nodeSelector.a=b", "imagePullSecrets[0].name=x", "hostNetwork.enabled=true", "env[0].name=A,env[0].value=b", values) {
			switch o.GetKind() {
			case "Job":
				must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &job))
			case "Deployment":
				var d appsv1.Deployment
				must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
				detects = detects || d.Name == lease // a process leads by the lease of its own name
			}
		}
		pod := job.Spec.Template
		if args := strings.Join(pod.Spec.Containers[0].Args, " "); !detects || !strings.HasPrefix(args, "leave --detector-lease=kube-system/"+lease+" ") {
			t.Errorf("%s: %s", values, args)
		}
		if job.Annotations["helm.sh/hook"] != "pre-delete" || *job.Spec.BackoffLimit != 0 || *job.Spec.ActiveDeadlineSeconds >= 300 {
			t.Errorf("%s: %v, %+v", values, job.Annotations, job.Spec)
		}
		if pod.Labels["team"] != "x" || pod.Spec.NodeSelector["a"] != "b" || len(pod.Spec.ImagePullSecrets) != 1 || len(pod.Spec.Tolerations) == 0 || pod.Spec.PriorityClassName == "" {
			t.Errorf("%s: %+v", values, pod)
		}
		if env := pod.Spec.Containers[0].Env; !pod.Spec.HostNetwork || pod.Spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet || len(env) != 1 || env[0].Name != "A" {
			t.Errorf("%s: it does not reach the API server as the other pods do: %+v", values, pod)
		}
	}
}
