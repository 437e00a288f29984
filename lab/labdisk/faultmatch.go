package labdisk

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
)

// parseCode reads the name of a gRPC code, in either of the two spellings in use: ResourceExhausted, RESOURCE_EXHAUSTED.
func parseCode(name string) (codes.Code, error) {
	plain := strings.ToLower(strings.ReplaceAll(name, "_", ""))
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if strings.ToLower(c.String()) == plain {
			return c, nil
		}
	}
	return codes.Unknown, fmt.Errorf("gRPC code %q is not known: use a name such as Unavailable or RESOURCE_EXHAUSTED", name)
}
