package usage

import "testing"

func TestCheckAddress(t *testing.T) {
	for value, valid := range map[string]bool{
		"": true, "0": true, ":8080": true, "127.0.0.1:8080": true, "[::1]:8080": true, "localhost:http": true,
		"frob": false, "99999": false, ":99999": false, "127.0.0.1": false, ":frob": false,
	} {
		err := CheckAddress("metrics-bind-address", value)
		if (err == nil) != valid || err != nil && Status(err) != StatusWrong {
			t.Errorf("%q: %v, want valid: %v", value, err, valid)
		}
	}
}
