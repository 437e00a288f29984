package kube

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// WithProtobuf is the configuration with the encoding that belay speaks to the API server:
// protobuf, which both sides code for a fraction of JSON's cost, and JSON for what has
// no protobuf form. Patches are JSON in either case.
func WithProtobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}
