package redact

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// asIs is a secret without quotes: it has no spaces, and the characters that end one only within it.
func asIs(secret string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || strings.ContainsRune("`\"'\\<>[]{}()=:", r) {
			return -1
		}
		return r
	}, secret), ",;&")
}

func jsonText(secret string) string {
	text, _ := json.Marshal(secret) // of a string, it cannot fail
	return string(text)
}

func quotedJSON(secret string) string { return strconv.Quote(`{"password":` + jsonText(secret) + `}`) }

func noTag(secret string) string { return strings.NewReplacer("<", "", "\n", "").Replace(secret) }

// carriers are the ways in which a text has a secret, at THIS as the function writes it.
var carriers = []struct {
	text  string
	write func(string) string
	stays string
}{
	{"login failed: password=THIS, denied", asIs, ", denied"},
	{"pwd=THIS", asIs, "pwd="},
	{"user=a&pwd=THIS&next=1", asIs, "&next=1"},
	{"chap_pass=THIS, retry", asIs, ", retry"},
	{"userPass: THIS", asIs, "userPass: "},
	{"mount -o username=u,pass=THIS,domain=d", asIs, ",domain=d"},
	{"node.session.auth.password_in = THIS", asIs, "node.session"},
	{"exec ipmitool -H 10.0.0.1 -U root -P THIS power status", asIs, " power status"},
	{"exec ipmitool -PTHIS power status", asIs, " power status"},
	{`exec ["ipmitool" "-P" THIS "power"]`, strconv.Quote, ` "power"]`},
	{`args: ["ipmitool","-P",THIS,"power"]`, jsonText, `,"power"]`},
	{"fence_redfish --password THIS --ip b", asIs, " --ip b"},
	{"fence_redfish --password=THIS --ip b", asIs, " --ip b"},
	{"--snmp-auth-passphrase THIS", asIs, "--snmp"},
	{`["--password", THIS, "--ip"]`, jsonText, `"--ip"]`},
	{"rbd map --id admin --key THIS img", asIs, " img"},
	{"secret: THIS", asIs, "secret: "},
	{"secret=THIS", asIs, "secret="},
	{"https://b.example.com/c?sv=1&sig=THIS&se=2", asIs, "&se=2"},
	{"https://s3/x?X-Amz-Signature=THIS&X-Amz-Expires=1", asIs, "&X-Amz-Expires=1"},
	{"x%3D1&password%3DTHIS", asIs, "x%3D1"},
	{"Cookie: a=THIS; b=THIS", asIs, "Cookie: "},
	{"Set-Cookie: JSESSIONID=THIS; Path=/", asIs, "Set-Cookie: "},
	{`"Cookie":["a=THIS; b=c"], "Host":"h"`, asIs, `"Host":"h"`},
	{"sessionId=THIS", asIs, "sessionId="},
	{"Authorization: Basic THIS", asIs, "Authorization: Basic "},
	{"Authorization: THIS", asIs, "Authorization: "},
	{"map[Authorization:[Bearer THIS] Host:[h]]", asIs, " Host:[h]]"},
	{`Authorization: Digest username="u", response="THIS"`, asIs, "Authorization: "},
	{"accessKeyId: THIS", asIs, "accessKeyId: "},
	{"access-key=THIS", asIs, "access-key="},
	{"AWS_SECRET_ACCESS_KEY=THIS aws", asIs, " aws"},
	{"publish with secrets map[userID:admin userKey:THIS]: denied", asIs, "userID:admin"},
	{"map[secretKey:THIS secretId:x]: denied", asIs, ": denied"},
	{"snmpget -v2c -c THIS 10.0.0.1 1.3.6", asIs, " 10.0.0.1 1.3.6"},
	{"snmpwalk -v3 -A THIS -X THIS 10.0.0.1", asIs, " 10.0.0.1"},
	{"community=THIS", asIs, "community="},
	{"snmp community string: THIS", asIs, ""},
	{`community string "THIS" was refused`, asIs, " was refused"},
	{"curl -u admin:THIS https://h", asIs, " https://h"},
	{"curl --user admin:THIS https://h", asIs, " https://h"},
	{"GET ftp://u:THIS@h/x", asIs, "@h/x"},
	{"GET ftp://u:a@THIS@h/x", asIs, "@h/x"},
	{"GET https://THIS@h/x", func(s string) string { return url.QueryEscape(s) }, "@h/x"},
	{`{"name":"DB_PASSWORD","value":THIS}`, jsonText, "DB_PASSWORD"},
	{"<login><password>THIS</password></login>", noTag, "</password></login>"},
	{`{"user":"admin","password":THIS,"b":1}`, jsonText, `,"b":1}`},
	{`{"accessKey" : THIS}`, jsonText, "}"},
	{"POST /login: body THIS: 401", quotedJSON, ": 401"},
	{"level=error msg=THIS code=3", func(s string) string { return strconv.Quote("body " + quotedJSON(s)) }, " code=3"},
	{"password: THIS", strconv.Quote, "password: "},
	{`{Password:THIS User:u}`, asIs, " User:u}"},
	{"iscsiadm -m node -T iqn.x -p 10.0.0.1 --op update -n node.session.auth.password -v THIS -d 8", asIs, " -d 8"},
	{"iscsiadm --mode node --op=update --name node.session.auth.password --value=THIS", asIs, "--op=update --name node.session.auth.password --value="},
	{`exec ["iscsiadm" "-n" "node.session.auth.password" "-v" THIS "-d"]`, strconv.Quote, ` "-d"]`},
	{"iscsiadm -m node -T iqn.x -p 10.0.0.1 --op update -v THIS -n node.session.auth.password", asIs, " -n node.session.auth.password"},
	{"iscsiadm --mode node --op=update --value=THIS -p 10.0.0.1 --name=node.session.auth.password_in", asIs, " -p 10.0.0.1 --name=node.session.auth.password_in"},
	{`exec ["iscsiadm" "-v" THIS "-n" "node.session.auth.password"]`, strconv.Quote, ` "-n" "node.session.auth.password"]`},
	{"aws ssm put-parameter --type SecureString --value THIS --name db-password", asIs, " --name db-password"},
	{"aws ssm put-parameter --name db-password --type SecureString --value THIS", asIs, "--type SecureString --value "},
	{"fence_ipmilan -a 10.0.0.1 -l root -p THIS -o status", asIs, "-a 10.0.0.1 -l root -p "},
	{"/usr/sbin/fence_apc -a h -pTHIS -o status", asIs, " -o status"},
	{`["fence_apc", "-a", "h", "-p", THIS, "-o"]`, jsonText, `, "-o"]`},
	{"sshpass -p THIS ssh -p 22 root@bmc", asIs, " ssh -p 22 root@bmc"},
	{"sshpass -pTHIS ssh root@bmc", asIs, " ssh root@bmc"},
	{"smbclient //s/share -U user%THIS -c ls", asIs, "//s/share -U user%"},
	{"ceph --key=AQCTHIS ls", asIs, "ceph --key="},
	{"login:\n  password:\n    THIS\n  user: u", asIs, "\n  user: u"},
	{"password: |-\n  THIS\n  THIS\nuser: u", asIs, "\nuser: u"},
	{"passwords:\n- THIS\n- THIS\nuser: u", asIs, "\nuser: u"},
	{`msg="password:\n  THIS"`, asIs, "msg="},
	{`{"key":"password","value":THIS}`, jsonText, `{"key":"password","value":`},
	{`<add key="Password" value=THIS/>`, func(s string) string { return `"` + strings.ReplaceAll(noTag(s), `"`, "") + `"` }, `<add key="Password" value="`},
	{"Authorization: Token THIS", asIs, "Authorization: Token "},
	{`"Authorization":["Token token=THIS"], "Host":"h"`, asIs, `"Host":"h"`},
	{"Authorization: Scheme THIS", asIs, "Authorization: "},
	{"Password for root is THIS", asIs, "Password for root is "},
	{"the passphrase of the key is THIS", asIs, "the passphrase of the key is "},
	{"pw=THIS", asIs, "pw="},
	{"wpa_psk=THIS", asIs, "wpa_psk="},
	{"tool --pw THIS --quiet", asIs, " --quiet"},
}

// TestSecrets: whatever carries a secret, the secret goes and what is beside it stays.
func TestSecrets(t *testing.T) {
	for _, c := range carriers {
		for _, secret := range []string{"hunter2", "AQBhunter2hunter2==", `hun ter"2,\ & hunter2`, "hunter2,hunter2;hunter2&hunter2", "p@hunter2/hunter2", "$hunter2#%hunter2", "größe-hunter2"} {
			text := strings.ReplaceAll(c.text, "THIS", c.write(secret))
			got := Secrets(text)
			if strings.Contains(got, "hunter2") || !strings.Contains(got, Removed) || !strings.Contains(got, c.stays) {
				t.Errorf("%s\nbecame %s", text, got)
			}
			if again := Secrets(got); again != got {
				t.Errorf("%s\nbecame %s\nand then %s", text, got, again)
			}
		}
	}
}

// TestHarmless: what a diagnosis needs stays.
func TestHarmless(t *testing.T) {
	for _, text := range []string{
		"rpc error: code = NotFound desc = volume vol-1 not found",
		`Get "https://10.0.0.1:443/api/v1/nodes?limit=500": dial tcp 10.0.0.1:443: connect: connection refused`,
		"kubectl belay stuck -A -o wide", "kubectl get pods -n prod -l app=db", "4 checks passed: ok", "config: a, design=b", "compare the keys of both",
		`secrets "db" not found`, "MountVolume.SetUp failed for volume \"a\": exit status 32", "mount -t nfs -o rw,vers=4.1 10.0.0.1:/x /y",
		"tokens expire", "password is wrong", "password for root is wrong, and the token of the pod is not valid", "the password for user root has expired", "password:\nlogin failed",
		"kubectl get secret -n prod -o yaml", "iscsiadm -m node -T iqn.x -p 10.0.0.1 --op update -n node.startup -v automatic", "iscsiadm -m node --op update -v automatic -n node.startup", "kubectl -v 6 get pods -n secret-store", "ssh -p 22 root@h", "nc -p 8080",
		"ipmitool -H h -U root power status", "secretRef:\n  name: db\n  namespace: prod", "secrets:\n- name: db", "sudo -u db psql", "disk is 80% full -U x",
		"token for the pod is being renewed", "key: name, value: a", `{"name":"HOST","value":"db-0"}`, "fence_ipmilan: the switch says Off -o status", "the bypass was closed", "iqn.2004-10.com.example:storage.disk1",
	} {
		if got := Secrets(text); got != text {
			t.Errorf("%s\nbecame %s", text, got)
		}
	}
}

// TestSeveralLines: lines are looked at one by one, and a key in PEM has several.
func TestSeveralLines(t *testing.T) {
	const text = "a: \"one\npassword: hunter2\n-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nafter\n"
	const want = "a: \"one\npassword: " + Removed + "\n" + Removed + "\nafter\n"
	if got := Secrets(text); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzSecrets puts a secret into each carrier, and looks at any text for what ends the program or is not stable.
func FuzzSecrets(f *testing.F) {
	for i := range carriers {
		f.Add(i, `a"b\\c' d,e`+strconv.Itoa(i), `password="`)
	}
	f.Fuzz(func(t *testing.T, i int, secret, before string) {
		lines := strings.Count(before, "\n")
		if got := Secrets(before); !strings.Contains(before, "-----BEGIN ") && strings.Count(got, "\n") != lines {
			t.Fatalf("%q became %q: it has other lines", before, got)
		}
		c := carriers[uint(i)%uint(len(carriers))]
		const marks = "hunter2" // at both ends: a part of the secret that is left has one
		text := strings.ReplaceAll(c.text, "THIS", c.write(marks+secret+marks))
		got := Secrets(text)
		if strings.Contains(got, marks) || !strings.Contains(got, c.stays) {
			t.Fatalf("%s\nbecame %s", text, got)
		}
	})
}
