package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func all(string) bool { return true }

// object decodes YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// unpack returns the files of an archive.
func unpack(t *testing.T, packed io.Reader) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	files, archive := map[string]string{}, tar.NewReader(zipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		content, readErr := io.ReadAll(archive)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		files[strings.TrimPrefix(header.Name, "belay-bundle/")] = string(content)
	}
}

// TestObject: no marker is left of any place that may have a secret, and what a diagnosis needs stays.
func TestObject(t *testing.T) {
	tests := map[string]struct{ object, stays string }{
		"environment": {"spec: {containers: [{name: c, env: [{name: PASSWORD, value: MARKER}, {name: B, valueFrom: {secretKeyRef: {name: MARKER, key: MARKER}}}], envFrom: [{secretRef: {name: MARKER}}]}]}", "PASSWORD"},
		"command":     {"spec: {containers: [{name: c, command: [sh, MARKER], args: [--password=MARKER], livenessProbe: {exec: {command: [MARKER]}}, lifecycle: {preStop: {exec: {command: [MARKER]}}}}]}", "name: c"},
		"init":        {"spec: {initContainers: [{name: init, env: [{name: A, value: MARKER}]}], ephemeralContainers: [{name: e, env: [{name: A, value: MARKER}]}]}", "name: init"},
		"pod volumes": {"spec: {imagePullSecrets: [{name: MARKER}], volumes: [{name: a, secret: {secretName: MARKER}}, {name: b, projected: {sources: [{secret: {name: MARKER}}, {serviceAccountToken: {path: MARKER}}]}}, {name: d, persistentVolumeClaim: {claimName: data}}]}", "claimName: data"},
		"inline":      {"spec: {volumes: [{name: a, csi: {driver: d, volumeAttributes: {k: MARKER}, nodePublishSecretRef: {name: MARKER}}}, {name: b, flexVolume: {driver: x, options: {p: MARKER}, secretRef: {name: MARKER}}}]}", "driver: d"},
		"volume":      {"spec: {mountOptions: ['password=MARKER'], csi: {driver: d, volumeHandle: h, volumeAttributes: {token: MARKER}, controllerPublishSecretRef: {namespace: n, name: MARKER}, nodeStageSecretRef: {name: MARKER}, nodePublishSecretRef: {name: MARKER}, controllerExpandSecretRef: {name: MARKER}, nodeExpandSecretRef: {name: MARKER}}}", "volumeHandle: h"},
		"in-tree":     {"spec: {azureFile: {secretName: MARKER, shareName: s}, cephfs: {secretFile: MARKER, secretRef: {name: MARKER}}}", "shareName: s"},
		"attachment":  {"spec: {attacher: d, source: {inlineVolumeSpec: {csi: {volumeAttributes: {a: MARKER}}}}}\nstatus: {attachmentMetadata: {token: MARKER}, attachError: {message: 'login failed: password=MARKER, retry'}}", "login failed"},
		"class":       {"parameters: {restuserkey: MARKER, csi.storage.k8s.io/provisioner-secret-name: MARKER}\nprovisioner: d\nmountOptions: [MARKER]", "restuserkey"},
		"annotations": {"metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: MARKER, example.com/anything: MARKER, kubernetes.io/some-token: MARKER, pv.kubernetes.io/provisioned-by: d}}", "provisioned-by: d"},
		"messages":    {"message: 'GET https://user:MARKER@host/x Authorization: Bearer MARKER12345 eyJMARKERMARKER.MARKERMARKER.x token=MARKER \"apiKey\": \"MARKER\"'", "GET https://"},
		"key":         {"message: \"-----BEGIN RSA PRIVATE KEY-----\\nMARKER\\n-----END RSA PRIVATE KEY----- after\"", "after"},
		"fields":      {"metadata: {managedFields: [{manager: m, fieldsV1: {'f:MARKER': {}}}]}", "manager: m"},
		"driver":      {"spec: {serviceAccountTokenInSecrets: true, tokenRequests: [{audience: a}]}", "serviceAccountTokenInSecrets: true"},
		"foreign":     {"spec: {claimRef: {namespace: foreign, name: MARKER}, storageClassName: s}", "storageClassName: s"},
		"malformed":   {"metadata: {annotations: MARKER password=MARKER}\nspec: {env: MARKER2, volumeAttributes: [MARKER], secret: 3}", "spec"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := &Redactor{MayName: func(namespace string) bool { return namespace != "foreign" }}
			o := object(t, tt.object)
			r.Object(o)
			text, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			if name == "malformed" {
				return // an object of no known schema must not end the program
			}
			if strings.Contains(string(text), "MARKER") || !strings.Contains(string(text), tt.stays) {
				t.Errorf("a marker is left, or %q is not:\n%s", tt.stays, text)
			}
		})
	}
}

// TestSecretNames: the name of a Secret goes from files that were added before it was known, and the fields of YAML stay.
func TestSecretNames(t *testing.T) {
	a := &Archive{Redactor: &Redactor{MayName: all}, Left: 1 << 20}
	a.Text("check.txt", "db-password: not found\nget secret prod/db-password, and name\n")
	f := a.Objects("objects/pods.yaml")
	for _, text := range []string{
		"metadata: {name: first}\nmessage: secret db-password not found", "spec: {volumes: [{name: v, secret: {secretName: db-password}}, {name: w, secret: {secretName: name}}]}",
	} {
		if err := f.Add(object(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	files := write(t, a)
	for name, content := range files {
		if strings.Contains(content, "db-password") {
			t.Errorf("%s has the name of the Secret:\n%s", name, content)
		}
	}
	if !strings.Contains(files["objects/pods.yaml"], "name: first") {
		t.Errorf("a field is lost:\n%s", files["objects/pods.yaml"])
	}
}

func write(t *testing.T, a *Archive) map[string]string {
	t.Helper()
	var out bytes.Buffer
	if err := a.Write(&out, time.Now(), "v1", "all namespaces"); err != nil {
		t.Fatal(err)
	}
	return unpack(t, &out)
}

// TestPseudonyms: the same name has the same pseudonym everywhere, and parts of longer names are found.
func TestPseudonyms(t *testing.T) {
	p := NewPseudonyms([]string{"namespace", "node", "claim", "pod"}, map[string][]string{
		"namespace": {"prod", "kube-system", "default", "prod"}, "pod": {"db-0", "db-1", "prod"}, "claim": {"data-db-0"}, "node": {"ip-10-0-0-1.ec2.internal", ""},
	})
	for text, want := range map[string]string{
		"pod prod/db-0 waits":                      "pod namespace-x1/pod-x1 waits",
		"db-1.db.prod.svc":                         "pod-x2.db.namespace-x1.svc",
		`node "ip-10-0-0-1.ec2.internal": silent.`: `node "node-x1": silent.`,
		"data-db-0 is not db-0":                    "claim-x1 is not pod-x1",
		"pvc-prod-data-db-0-1":                     "pvc-namespace-x1-claim-x1-1",
		"kube-system/default":                      "kube-system/default",
		"production db-00":                         "production db-00",
		"":                                         "",
	} {
		if got := p.Replace(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestOwnersWithoutPseudonym: an owner of which nothing else was read, as a StatefulSet without pods, is not named.
func TestOwnersWithoutPseudonym(t *testing.T) {
	r := &Redactor{MayName: all, Names: NewPseudonyms([]string{"owner"}, map[string][]string{"owner": {"web"}})}
	o := object(t, "metadata: {name: x, ownerReferences: [{kind: StatefulSet, name: payroll, uid: u}, {kind: ReplicaSet, name: web}, nonsense]}")
	r.Object(o)
	text, err := yaml.Marshal(o.Object)
	if err != nil || strings.Contains(string(text), "payroll") || !strings.Contains(string(text), "name: owner-x1") || !strings.Contains(string(text), "kind: StatefulSet") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// TestSizeLimit: what does not fit is cut at whole objects and lines, and README.txt says so.
func TestSizeLimit(t *testing.T) {
	a := &Archive{Redactor: &Redactor{MayName: all}, Left: 300}
	f := a.Objects("objects/pods.yaml")
	for range 10 {
		if err := f.Add(object(t, "metadata: {name: "+strings.Repeat("x", 80)+"}")); err != nil {
			t.Fatal(err)
		}
	}
	if kept := f.Close(); kept != 2 {
		t.Errorf("%d objects, want 2", kept)
	}
	a.Text("map.yaml", strings.Repeat("a: b\n", 100))
	a.Text("logs/x.log", strings.Repeat("earlier\n", 100)+"the last line\n")
	a.Note("events: no permission")
	files := write(t, a)
	var total int
	for name, content := range files {
		if name != "README.txt" {
			total += len(content)
		}
	}
	if total > 300 || !strings.HasSuffix(files["logs/x.log"], "the last line\n") || !strings.HasPrefix(files["logs/x.log"], "earlier\n") || files["map.yaml"] != "" {
		t.Errorf("%d bytes: %q", total, files)
	}
	for _, want := range []string{"objects/pods.yaml has 2 of 10 objects", "map.yaml is left out", "logs/x.log has the last", "- events: no permission", "- objects/pods.yaml ("} {
		if !strings.Contains(files["README.txt"], want) {
			t.Errorf("README.txt lacks %q:\n%s", want, files["README.txt"])
		}
	}
}

// TestLongWordsTakeLinearTime: a log line or a handle is one word of many parts. Each part was compared with all names up to the end of the word,
// which took hours for a megabyte; the test binary's time limit is the judge.
func TestLongWordsTakeLinearTime(t *testing.T) {
	names := NewPseudonyms([]string{"pod", "claim"}, map[string][]string{"pod": {"a-b", "a", "a-b-c"}, "claim": {"data.db_0"}})
	for _, part := range []string{"a-b-c-", "x.", "a_", "-", "data.db_"} {
		got := names.Replace("x-" + strings.Repeat(part, 1<<20/len(part)) + "0")
		if strings.Contains(got, "a-b") || strings.Contains(got, "a_a") {
			t.Errorf("names are left in %.80s", got)
		}
	}
}

// TestNamesInWords: the longest name that begins at a part of a word is replaced.
func TestNamesInWords(t *testing.T) {
	names := NewPseudonyms([]string{"pod", "claim"}, map[string][]string{"pod": {"db", "db-0", "db-0-x.y"}, "claim": {"data-db-0", "0"}})
	for text, want := range map[string]string{
		"db-0-x.y": "pod-x3", "db-0-x": "pod-x2-x", "db-0-x.yz": "pod-x2-x.yz", "a--db_0": "a--pod-x1_claim-x1", "data-db-0-db": "claim-x2-pod-x1",
		"data-db": "data-pod-x1", "dbx-0": "dbx-claim-x1", "db-0.svc, db": "pod-x2.svc, pod-x1",
	} {
		if got := names.Replace(text); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}
