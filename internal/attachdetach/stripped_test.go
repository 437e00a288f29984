package attachdetach

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/testing/wait"
)

// Admission may remove annotations, and a handle may be too long for one: belay still
// knows what it created.
func TestOwnAttachmentsAreKnownWithoutAnnotations(t *testing.T) {
	for name, prepare := range map[string]func(l *lab, volume string){
		"stripped": func(l *lab, volume string) { l.volume(volume) },
		"long":     func(l *lab, volume string) { l.longVolume(volume) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.node("a")
			if name == "stripped" {
				l.stripAnnotations()
			}
			registry := prometheus.NewRegistry()
			l.options.Settle = time.Nanosecond
			l.options.Metrics = telemetry.NewController(registry)
			launchAs(t, l.options, func(next http.RoundTripper) http.RoundTripper { return next })
			for _, volume := range []string{"u", "v", "w", "x"} {
				prepare(l, volume)
				l.pod(volume, "a", volume)
				l.await(volume+" attached", func() bool {
					for _, va := range l.vas {
						if *va.Spec.Source.PersistentVolumeName == l.name(volume) && va.Status.Attached {
							return va.Annotations[kube.VolumeHandleAnnotation] == ""
						}
					}
					return false
				})
			}
			if n := foreignWrites(t, registry); n != 0 {
				t.Errorf("%v writes are taken for another controller's", n)
			}
		})
	}
}

// foreignWrites sums the metric over all resources.
func foreignWrites(t *testing.T, registry *prometheus.Registry) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "attachdetach_foreign_writes_total" {
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
			return sum
		}
	}
	t.Fatal("no such metric")
	return 0
}

// longVolume makes a volume whose handle does not fit into an annotation.
func (l *lab) longVolume(name string) {
	l.Helper()
	l.must(l.Create(l.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: l.name(name)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: storage().Requests,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: l.name(name) + strings.Repeat("x", 130<<10),
			}},
		},
	}))
	l.claim(name)
}

// stripAnnotations makes the API server remove all annotations from VolumeAttachments
// for this test's nodes when they are created.
func (l *lab) stripAnnotations() {
	l.Helper()
	policy := &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: l.prefix},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule: admissionv1.Rule{
						APIGroups: []string{"storage.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"volumeattachments"},
					},
				},
			}}},
			MatchConditions: []admissionv1.MatchCondition{{
				Name: "here", Expression: `object.spec.nodeName.startsWith("` + l.prefix + `-") && has(object.metadata.annotations)`,
			}},
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{Expression: `[JSONPatch{op: "remove", path: "/metadata/annotations"}]`},
			}},
		},
	}
	l.must(l.Create(l.ctx, policy))
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: l.prefix}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: l.prefix},
	}
	l.must(l.Create(l.ctx, binding))
	l.Cleanup(func() {
		_ = l.Delete(context.Background(), binding)
		_ = l.Delete(context.Background(), policy)
	})
	source := "x"
	wait.Until(l, "the policy takes effect", func() bool { // the API server learns of it by a watch
		va := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: l.name("trial"), Annotations: map[string]string{"a": "b"}},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: driver, NodeName: l.name("a"), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &source},
			},
		}
		l.must(l.Create(l.ctx, va, client.DryRunAll))
		return len(va.Annotations) == 0
	})
}
