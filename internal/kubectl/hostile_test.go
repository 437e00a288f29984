package kubectl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/hostile"
)

// fill puts the hostile text into an object: into each string that is empty, at the end of each map, list and, with names, of each string
// that is not kept. Objects that refer to each other still do, for each string is changed in the same way.
type fill struct {
	names bool
	keep  []string
}

// unions have one field that is set.
var unions = []reflect.Type{
	reflect.TypeFor[corev1.VolumeSource](), reflect.TypeFor[corev1.PersistentVolumeSource](), reflect.TypeFor[storagev1.VolumeAttachmentSource](),
	reflect.TypeFor[metav1.TypeMeta](),
}

func (f fill) object(v reflect.Value, depth int) {
	if _, marshals := reflect.TypeAssert[json.Marshaler](v.Addr()); marshals || depth > 12 {
		return // a time, a quantity: no text is in it
	}
	switch v.Kind() {
	case reflect.String:
		switch plain := v.Type() == reflect.TypeFor[string](); {
		case v.String() == "":
			v.SetString(hostile.Text)
		case plain && f.names && !slices.Contains(f.keep, v.String()):
			v.SetString(v.String() + hostile.Text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Field(i)
			if empty := field.IsZero(); v.Type().Field(i).IsExported() && v.Type().Field(i).Type != unions[3] && (!empty || !slices.Contains(unions, v.Type())) {
				f.object(field, depth+1)
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			if v.Type() == reflect.TypeFor[*metav1.Time]() || v.Type().Elem().Kind() == reflect.Bool {
				return // it would be deleted
			}
			v.Set(reflect.New(v.Type().Elem()))
		}
		f.object(v.Elem(), depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		if v.Len() == 0 || v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
		}
		for i := range v.Len() {
			f.object(v.Index(i), depth+1)
		}
	case reflect.Map:
		if v.Type() == reflect.TypeFor[map[string]string]() {
			filled := map[string]string{hostile.Text: hostile.Text}
			for _, key := range v.MapKeys() {
				filled[key.String()] = v.MapIndex(key).String()
			}
			v.Set(reflect.ValueOf(filled))
		}
	default:
	}
}

// hostileKind is a kind of objects that an API server has.
type hostileKind struct {
	resource, version, kind string
	objects                 []any
}

// hostileWorld is a cluster in which a pod waits for a volume that a dead node has.
func hostileWorld() []hostileKind {
	pv := fixture.PersistentVolume("pv-1", driver, "handle-1")
	pv.UID = "uid-of-pv-1"
	claim := fixture.Claim("prod", "data", pv)
	claim.UID = "uid-of-data"
	fixture.Bind(pv, claim)
	pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "prod", Name: "disk-password"}
	running, waiting := fixture.Pod("prod", "holder", "node-1", "data"), fixture.Pod("prod", "waiter", "node-2", "data")
	running.UID, waiting.UID = "uid-of-holder", "uid-of-waiter"
	running.Status.Phase = corev1.PodRunning
	attacher := component("kube-system", "attacher-0", "example.com/csi-attacher:v4.8.0", "csi-attacher")
	dead := node("node-1", "handle-1")
	dead.Status.Conditions[0].Status = corev1.ConditionUnknown
	va := fixture.Attachment("csi-1", driver, "node-1", "pv-1")
	va.Status.Attached = true
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "prod", Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "prod", Name: "waiter", UID: "uid-of-waiter"},
		Reason:         "FailedAttachVolume", Type: corev1.EventTypeWarning, LastTimestamp: metav1.Now(), FirstTimestamp: metav1.Now(),
	}
	lease := heldLease("kube-node-lease", "node-1", "node-1")
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-time.Hour)}
	return []hostileKind{
		{"pods", "v1", "Pod", []any{running, waiting, attacher}},
		{"persistentvolumeclaims", "v1", "PersistentVolumeClaim", []any{claim}},
		{"persistentvolumes", "v1", "PersistentVolume", []any{pv}},
		{"nodes", "v1", "Node", []any{dead, node("node-2")}},
		{"events", "v1", "Event", []any{event}},
		{"namespaces", "v1", "Namespace", []any{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}}},
		{"volumeattachments", "storage.k8s.io/v1", "VolumeAttachment", []any{va}},
		{"csinodes", "storage.k8s.io/v1", "CSINode", []any{&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "id-2"}}}}}},
		{"csidrivers", "storage.k8s.io/v1", "CSIDriver", []any{&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}}}},
		{"storageclasses", "storage.k8s.io/v1", "StorageClass", []any{&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver}}},
		{"leases", "coordination.k8s.io/v1", "Lease", []any{
			lease, heldLease("kube-system", "kube-controller-manager", "cp-1_u"), heldLease("kube-system", "external-attacher-leader-disk-example-com", "attacher-0"),
		}},
		{"nodefences", "fencing.belay.dev/v1alpha1", "NodeFence", []any{fenceOn("node-1", 1)}},
		{"fencesources", "fencing.belay.dev/v1alpha1", "FenceSource", []any{sourceOf("node-1", "belay-system", "bmc")}},
	}
}

// kept are the strings by which the commands find objects at all.
var kept = []string{"prod", "kube-system", "kube-node-lease", "belay-system", driver, "Pod", "FailedAttachVolume", kube.ConditionFenceReady,
	"kube-controller-manager", "external-attacher-leader-disk-example-com", kube.FenceFinalizer, corev1.EventTypeWarning}

// hostileServer answers as an API server whose objects and errors have the hostile text.
func hostileServer(t *testing.T, f fill) *httptest.Server {
	t.Helper()
	kinds := hostileWorld()
	for i := range kinds {
		for _, o := range kinds[i].objects {
			f.object(reflect.ValueOf(o).Elem(), 0)
			typed := reflect.ValueOf(o).Elem().FieldByName("TypeMeta").Addr().Interface().(*metav1.TypeMeta)
			typed.Kind, typed.APIVersion = kinds[i].kind, kinds[i].version
		}
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api"), "/v1/") // of the core, and of groups
		if after, ok := strings.CutPrefix(r.URL.Path, "/apis/"+fencingv1.GroupVersion.String()+"/"); ok {
			path = after
		}
		namespace := ""
		if parts := strings.SplitN(path, "/", 3); parts[0] == "namespaces" && len(parts) == 3 {
			namespace, path = parts[1], parts[2]
		}
		resource, name, _ := strings.Cut(path, "/")
		switch {
		case strings.HasSuffix(path, "/log"):
			fmt.Fprint(w, "a line\n"+hostile.Text+"\xff\n")
			return
		case resource == "selfsubjectaccessreviews":
			fmt.Fprint(w, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
			return
		case resource == "selfsubjectreviews":
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status": map[string]any{"userInfo": map[string]any{"username": "admin" + hostile.Text}}})
			return
		}
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		i := slices.IndexFunc(kinds, func(k hostileKind) bool { return k.resource == resource })
		if r.Method != http.MethodGet || i < 0 || strings.Contains(name, "/proxy") {
			hostile.Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return
		}
		items := []any{}
		for _, o := range kinds[i].objects {
			object := o.(metav1.Object)
			if (namespace == "" || object.GetNamespace() == namespace) && (name == "" || object.GetName() == name) {
				items = append(items, o)
			}
		}
		switch {
		case name == "":
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": kinds[i].kind + "List", "apiVersion": kinds[i].version, "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
		case len(items) == 0:
			hostile.Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		default:
			_ = json.NewEncoder(w).Encode(items[0])
		}
	}))
	t.Cleanup(front.Close)
	return front
}

// hostileCommands are all commands, with the formats that each has beside text, JSON and YAML.
var hostileCommands = []struct {
	args    []string
	formats string
}{
	{[]string{"explain", "pod/waiter", "-n", "prod"}, "wide"}, {[]string{"explain", "pod/holder", "-n", "prod"}, "wide"}, {[]string{"explain", "pvc/data", "-n", "prod"}, "wide"},
	{[]string{"explain", "pv/pv-1"}, "wide"}, {[]string{"explain", "node/node-1"}, "wide"}, {[]string{"explain", "va/csi-1"}, "wide"}, {[]string{"explain", "pod/" + hostile.Text, "-n", "prod"}, "wide"},
	{[]string{"explain", "sts/db", "-n", "prod"}, "wide"}, {[]string{"runbook", hostile.Text}, "-"},
	{[]string{"stuck", "-A"}, "wide name"}, {[]string{"stuck", "-n", "prod"}, "wide"}, {[]string{"orphans"}, "wide name"}, {[]string{"map"}, "wide name"}, {[]string{"map", "--node", "node-1"}, "wide"},
	{[]string{"timeline", "pod/waiter", "-n", "prod"}, ""}, {[]string{"check", "--ascii"}, "short"},
	{[]string{"check", "--take-over", "--observe", "0", "--kubelet-config"}, "short"}, {[]string{"evidence", "node/node-1"}, "wide"}, {[]string{"evidence", "node/node-2"}, "wide"},
	{[]string{"fence", "node/node-1", "--reason", "it is off", "--machine", uuidOfA}, ""}, {[]string{"unfence", "node/node-1"}, ""}, {[]string{"unfence", "node/node-1", "--confirm"}, ""},
	{[]string{"import", "far"}, ""}, {[]string{"import", "far", "-f", hostile.Text}, "-"},
	{[]string{"force-detach", "va/csi-1"}, ""}, {[]string{"force-detach", "va/csi-1", "--confirm", "--i-accept-data-loss"}, ""},
	{[]string{"declare-gone", "node/node-1", "--reason", "it is gone", "--node-id", "id-1"}, ""}, {[]string{"wait-detached", "node/node-1", "--timeout", "1ms"}, ""},
	{[]string{hostile.Text}, ""}, {[]string{"help", hostile.Text}, ""}, {[]string{"stuck", "-n", hostile.Text}, ""},
	{[]string{"version"}, "-"}, {[]string{"--help"}, "-"},
}

// TestHostileText: whatever objects and the API server's errors contain, the commands write printable text only, in documents that can be
// read, and no line that is not theirs.
func TestHostileText(t *testing.T) {
	for name, f := range map[string]fill{"free text": {}, "names too": {names: true, keep: kept}} {
		t.Run(name, func(t *testing.T) {
			least := map[bool]int{false: 20, true: 50}[f.names]
			kubeconfig := apiserver.Kubeconfig(t, &rest.Config{Host: hostileServer(t, f).URL})
			seen := 0
			for _, c := range hostileCommands {
				args := slices.Clone(c.args)
				for i, arg := range args {
					if _, object, ok := strings.Cut(arg, "/"); f.names && (ok && object != "" || arg == "node-1") {
						args[i] = arg + hostile.Text
					}
				}
				formats := append([]string{""}, strings.Fields(c.formats)...)
				if c.formats == "-" {
					formats = formats[:1]
				} else {
					formats = append(formats, "json", "yaml")
				}
				for _, format := range formats {
					given := args
					if format != "" {
						given = append(slices.Clone(args), "-o", format)
					}
					got := run(t, kubeconfig, given...)
					hostile.Check(t, fmt.Sprintf("%q: standard output", given), got.out)
					hostile.Check(t, fmt.Sprintf("%q: standard error", given), got.err)
					if strings.Contains(got.out, hostile.Shown) {
						seen++
					}
					if decode := map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": func(b []byte, into any) error { return yaml.Unmarshal(b, into) }}[format]; decode != nil && got.out != "" {
						var document any
						if err := decode([]byte(got.out), &document); err != nil {
							t.Errorf("%q: %v in\n%s", given, err, got.out)
						}
					} else if strings.Contains(got.out, "\nFORGED") {
						t.Errorf("%q: a line that the command did not write:\n%s", given, got.out)
					}
				}
			}
			if t.Logf("%d outputs have the text", seen); seen < least {
				t.Errorf("only %d outputs have the text: the others do not show that it is harmless", seen)
			}
			bundleOf(t, kubeconfig)
		})
	}
}

// bundleOf checks the files of a bundle and what the command prints.
func bundleOf(t *testing.T, kubeconfig string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := run(t, kubeconfig, "bundle", "-f", file)
	hostile.Check(t, "bundle: standard error", got.err)
	piped := run(t, kubeconfig, "bundle", "-f", "-")
	zipped, err := gzip.NewReader(strings.NewReader(piped.out))
	if err != nil {
		t.Fatalf("%v\n%s", err, piped.err)
	}
	files, archive := 0, tar.NewReader(zipped)
	var all bytes.Buffer
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files++
		all.Write(content)
		hostile.Check(t, "bundle: the name "+header.Name, header.Name)
		hostile.Check(t, "bundle: "+header.Name, string(content))
	}
	for _, want := range []string{hostile.Shown, "a line\n", "kind: NodeFence"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("none of %d files of the bundle has %q", files, want)
		}
	}
}
