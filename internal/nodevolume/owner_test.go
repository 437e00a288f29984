package nodevolume

import "testing"

func TestOwnerCompare(t *testing.T) {
	recorded := Owner{NodeName: "edge", NodeUID: "n-1", Cluster: map[string]string{"namespace": "c-1", "service": "s-1"}}
	tests := map[string]struct {
		recorded, now Owner
		want          Ownership
	}{
		"nothing changed":                       {recorded, recorded, SameOwner},
		"renamed":                               {recorded, Owner{NodeName: "edge.lan", NodeUID: "n-1", Cluster: recorded.Cluster}, OtherNode},
		"same Node, cluster not readable":       {recorded, Owner{NodeName: "edge", NodeUID: "n-1"}, SameOwner},
		"Node recreated in the same cluster":    {recorded, Owner{NodeName: "edge", NodeUID: "n-2", Cluster: recorded.Cluster}, SameOwner},
		"Node deleted":                          {recorded, Owner{NodeName: "edge", Cluster: map[string]string{"namespace": "c-1"}}, SameOwner},
		"Node and one of the objects recreated": {recorded, Owner{NodeName: "edge", NodeUID: "n-2", Cluster: map[string]string{"namespace": "c-1", "service": "s-2"}}, SameOwner},
		"another cluster":                       {recorded, Owner{NodeName: "edge", NodeUID: "n-2", Cluster: map[string]string{"namespace": "c-2", "service": "s-2"}}, OtherCluster},
		"another cluster, no such Node":         {recorded, Owner{NodeName: "edge", Cluster: map[string]string{"service": "s-2"}}, OtherCluster},
		"another Node, cluster not readable":    {recorded, Owner{NodeName: "edge", NodeUID: "n-2"}, OwnerUnknown},
		"nothing can be read":                   {recorded, Owner{NodeName: "edge"}, OwnerUnknown},
		"nothing in common that could be read":  {Owner{NodeName: "edge", NodeUID: "n-1", Cluster: map[string]string{"service": "s-1"}}, Owner{NodeName: "edge", NodeUID: "n-2", Cluster: map[string]string{"namespace": "c-1"}}, OwnerUnknown},
		"only the name is recorded":             {Owner{NodeName: "edge"}, recorded, OwnerUnknown},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.recorded.Compare(tt.now); got != tt.want {
				t.Errorf("Compare = %v, want %v", got, tt.want)
			}
		})
	}
	now := Owner{NodeName: "edge", NodeUID: "n-2", Cluster: map[string]string{"namespace": "c-1"}}
	want := Owner{NodeName: "edge", NodeUID: "n-2", Cluster: map[string]string{"namespace": "c-1", "service": "s-1"}}
	if got := recorded.Updated(now); !got.Equal(want) {
		t.Errorf("Updated = %+v, want %+v", got, want)
	}
	if got := recorded.Updated(Owner{NodeName: "edge"}); !got.Equal(recorded) {
		t.Errorf("Updated by nothing = %+v, want %+v", got, recorded)
	}
}
