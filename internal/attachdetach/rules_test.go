package attachdetach

import (
	"fmt"
	"maps"
	"slices"
)

// checkRights compares the requests of the controller in all tests with the rights that it is shipped with: none was refused,
// and no right is granted that was not used.
func checkRights() error {
	requests, err := cluster.Requests(controllerUser)
	if err != nil {
		return err
	}
	used := maps.Clone(rare)
	var refused, unused []string
	for _, r := range requests {
		if used[r.Right()] = true; r.Refused() {
			refused = append(refused, r.Right())
		}
	}
	for right := range granted {
		if !used[right] {
			unused = append(unused, right)
		}
	}
	slices.Sort(unused)
	if len(refused) > 0 || len(unused) > 0 {
		return fmt.Errorf("rights: refused %v, granted but never used %v", refused, unused)
	}
	return nil
}

// rare are rights that the tests need not use.
var rare = map[string]bool{
	"patch /events": true, // only when an event repeats
	// Only where lists cannot be streamed, or a watch fails; TestRights of the lab covers both.
	"list storage.k8s.io/csidrivers": true, "list /persistentvolumeclaims": true, "list /persistentvolumes": true,
}
