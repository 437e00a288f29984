package recovery

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// columns are the cells of the first row that kubectl get shows for a resource, by the names of the columns.
func columns(t *testing.T, resource string) map[string]any {
	t.Helper()
	c, err := rest.HTTPClientFor(cluster.Config())
	must(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(cluster.Config().Host, "/")+"/apis/fencing.belay.dev/v1alpha1/"+resource, http.NoBody)
	must(t, err)
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := c.Do(request)
	must(t, err)
	defer func() { _ = response.Body.Close() }()
	table := &metav1.Table{}
	must(t, json.NewDecoder(response.Body).Decode(table))
	if len(table.Rows) != 1 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	found := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		found[column.Name] = table.Rows[0].Cells[i]
	}
	return found
}

// TestColumns: kubectl get shows what a fence was proven by also if another answer came after that, what it waits for as text, and since when
// a switch can be used or cannot.
func TestColumns(t *testing.T) {
	s := newSite(t)
	m := s.machine("n1")
	f := m.makeFence(fencing.Tainting)
	f.Status.Missing = []string{"the answer of the power switch"}
	setCondition(&f.Status, conditionProven, metav1.ConditionTrue, string(fencing.PoweredOff), "the switch says Off")
	f.Status.Evidence = []fencingv1.Evidence{
		{Class: string(fencing.PoweredOff), Power: powerOff, BootID: m.boot, Time: metav1.NowMicro()}, {Power: powerUnknown, BootID: m.boot, Time: metav1.NowMicro()},
	}
	must(t, s.client.Status().Update(t.Context(), f))
	if got := columns(t, "nodefences"); got["Evidence"] != string(fencing.PoweredOff) || got["Missing"] != "the answer of the power switch" {
		t.Errorf("NodeFence: %v", got)
	}
	m.source()
	source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	must(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(source), source))
	source.Status.Conditions = []metav1.Condition{{
		Type: conditionFenceReady, Status: metav1.ConditionFalse, Reason: reasonNoAnswer, LastTransitionTime: metav1.NewTime(time.Now().Add(-3 * time.Hour)),
	}}
	must(t, s.client.Status().Update(t.Context(), source))
	if got := columns(t, "fencesources"); got["Reason"] != reasonNoAnswer || got["Since"] != "3h" {
		t.Errorf("FenceSource: %v", got)
	}
}
