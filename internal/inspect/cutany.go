package inspect

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// nameFields have the name of an object, of a namespace, or of a client.
var nameFields = map[string]bool{
	"name": true, "namespace": true, "uid": true, "kind": true, "generateName": true, "volumeName": true, "persistentVolumeName": true, "claimName": true,
	"nodeName": true, "holderIdentity": true, "preferredHolder": true,
}

// uncutFields are volume handles, and the lists of a Node.
var uncutFields = map[string]bool{"volumeHandle": true, "volumesInUse": true, "volumesAttached": true}

// Cut applies kube.Name and decision.Text to all fields of an object, except volume handles and the lists of a Node. It changes the object.
func Cut(o *unstructured.Unstructured) {
	for key, value := range o.Object {
		o.Object[key] = cutField(key, value)
	}
}

func cutField(key string, value any) any {
	if uncutFields[key] {
		return value
	}
	switch v := value.(type) {
	case string:
		switch {
		case nameFields[key]:
			return kube.Name(v)
		case !strings.HasPrefix(key, "belay.dev/"): // these annotations record handles, also as parts of JSON
			return decision.Text(v)
		}
	case map[string]any:
		for inner, value := range v {
			v[inner] = cutField(inner, value)
		}
	case []any:
		for i := range v {
			v[i] = cutField("", v[i])
		}
	}
	return value
}
