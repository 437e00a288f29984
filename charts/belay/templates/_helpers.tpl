{{/* The labels of every object. A selector has only the first. */}}
{{- define "belay.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: belay
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* The reference to an image: the digest or the tag of the values, else the digest that the release has stamped, else the tag of the version. */}}
{{- define "belay.image" -}}
{{ .root.Values.imageRegistry }}/{{ .name }}
{{- $released := index (.root.Chart.Annotations | default dict) (printf "digest.belay.dev/%s" .name) }}
{{- if .digest }}@{{ .digest }}
{{- else if .root.Values.imageTag }}:{{ .root.Values.imageTag }}
{{- else if $released }}@{{ $released }}
{{- else }}:{{ .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Whether recovery's actor runs in belay-controller. */}}
{{- define "belay.actorInController" -}}
{{ if and .Values.controller.enabled .Values.recovery.enabled }}true{{ end }}
{{- end }}

{{/* The Deployments of recovery and the roles that each runs, as YAML. */}}
{{- define "belay.recoveryParts" -}}
{{- $actor := not (include "belay.actorInController" .) }}
{{- if .Values.recovery.together }}
- {name: belay-recovery, roles: [detector, fencer{{ if $actor }}, actor{{ end }}]}
{{- else }}
- {name: belay-recovery-detector, roles: [detector]}
- {name: belay-recovery-fencer, roles: [fencer]}
{{- if $actor }}
- {name: belay-recovery-actor, roles: [actor]}
{{- end }}
{{- end }}
{{- end }}

{{/* The ServiceAccount under which a role of recovery runs. */}}
{{- define "belay.recoveryAccount" -}}
{{- if and (eq .role "actor") (include "belay.actorInController" .root) }}belay-controller
{{- else if .root.Values.recovery.together }}belay-recovery
{{- else }}belay-recovery-{{ .role }}
{{- end }}
{{- end }}

{{/* The user names of the ServiceAccounts of the release, as a list in CEL. The policies hold all of them: which of these has which rights is not theirs to know. */}}
{{- define "belay.accounts" -}}
{{- $accounts := list }}
{{- range list "belay-controller" "belay-recovery" "belay-recovery-actor" "belay-recovery-detector" "belay-recovery-fencer" "belay-recovery-leave" }}
{{- $accounts = append $accounts (printf "'system:serviceaccount:%s:%s'" $.Release.Namespace .) }}
{{- end -}}
[{{ join ", " $accounts }}]
{{- end }}

{{/* What belay-controller records on a VolumeAttachment: of the machine, of the volume, and of a detach that waits. As a list in CEL. */}}
{{- define "belay.records" -}}
['belay.dev/volume-handle', 'belay.dev/node-uid', 'belay.dev/boot-id', 'belay.dev/system-uuid', 'belay.dev/provider-id',
      'belay.dev/node-id-of-same-machine', 'belay.dev/detach-requested-at', 'belay.dev/detach-called-off-at', 'belay.dev/unfenced-boot']
{{- end }}

{{/* The lease by which the detector leads, as belay-controller names it. */}}
{{- define "belay.detectorLease" -}}
{{ if .Values.recovery.together }}belay-recovery{{ else }}belay-recovery-detector{{ end }}
{{- end }}

{{/* Binds a ClusterRole or Role, by default that of the same name, to a ServiceAccount of the release's namespace. */}}
{{- define "belay.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if .namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ .name }}
{{- with .namespace }}
  namespace: {{ . }}
{{- end }}
{{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
{{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ if .namespace }}Role{{ else }}ClusterRole{{ end }}
  name: {{ .role | default .name }}
subjects:
- kind: ServiceAccount
  name: {{ .account }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* The rights on the leases of leader election, where --leader-elect-resource-namespace has them by default. */}}
{{- define "belay.leaderElection" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: kube-system
rules:
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ join ", " .leases }}]
  verbs: [get, update, watch]
{{- end }}

{{/* The right to read the leases of the nodes. */}}
{{- define "belay.nodeLeases" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: kube-node-lease
rules:
{{- with .why }}
# {{ . }}
{{- end }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [{{ join ", " .verbs }}]
{{- end }}

{{/* Lets a ServiceAccount ask the API server who reads its metrics, and whether they may: create tokenreviews and subjectaccessreviews, as Kubernetes' own role has it. */}}
{{- define "belay.metricsReviews" -}}
{{ include "belay.binding" (dict "root" .root "name" (printf "%s-metrics" .account) "role" "system:auth-delegator" "account" .account) }}
{{- end }}

{{/* Fails if a value would make the parts of the chart work against each other. What a type or a range can say is in values.schema.json. */}}
{{- define "belay.refuse" -}}
{{- if and .Values.controller.enabled (not .Values.controller.upstreamDisabled) }}
{{- fail "kube-controller-manager's attach/detach controller must be off first: docs/migrate.md; run `belay-controller preflight`; then --set controller.upstreamDisabled=true. On a managed control plane set controller.enabled=false" }}
{{- end }}
{{- if and (not .Values.recovery.enabled) (or .Values.recovery.dryRun .Values.recovery.together) }}
{{- fail "recovery.dryRun and recovery.together have no effect without recovery.enabled=true" }}
{{- end }}
{{- range $part := list "controller" "recovery" }}
{{- range (get $.Values $part).extraArgs }}
{{- if regexMatch "^--?leader[-_]elect(=|$)" . }}
{{- fail (printf "%s.extraArgs: %s: the chart sets it, because without an election each pod leads. For a single pod set %s.replicas=1" $part . $part) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.networkPolicy.enabled }}
{{- range $name := list "apiServerCIDRs" "nodeCIDRs" }}
{{- if not (get $.Values.networkPolicy $name) }}{{ fail (printf "networkPolicy.%s is empty: state the addresses, or the policy allows all of them" $name) }}{{ end }}
{{- end }}
{{- if and .Values.recovery.enabled (not .Values.networkPolicy.powerSwitches) }}{{ fail "networkPolicy.powerSwitches is empty: the fencer would reach no power switch" }}{{ end }}
{{- end }}
{{- range .Values.recovery.secrets }}
{{- if eq (.namespace | default $.Release.Namespace) "kube-system" }}
{{- fail (printf "recovery.secrets: %s is in kube-system, beside passwords of other components: move it, and state its namespace" .name) }}
{{- end }}
{{- end }}
{{- range $label, $_ := fromYaml (include "belay.labels" (dict "root" . "name" "belay")) }}
{{- if hasKey ($.Values.podLabels | default dict) $label }}{{ fail (printf "podLabels: the chart sets %s itself" $label) }}{{ end }}
{{- end }}
{{- end }}

{{/* GOMEMLIMIT: as stated, else nine tenths of the memory limit, and 900MiB for each Gi. Empty without a limit. */}}
{{- define "belay.memoryLimit" -}}
{{- $limit := dig "limits" "memory" "" (.resources | default dict) | toString }}
{{- if .memoryLimit }}{{ .memoryLimit }}
{{- else if regexMatch "^[0-9]+[MG]i$" $limit }}{{ div (mul (regexFind "^[0-9]+" $limit) (ternary 1000 1 (hasSuffix "Gi" $limit)) 9) 10 }}MiB
{{- else if $limit }}{{ fail (printf "controller.memoryLimit: it cannot be derived from the memory limit %s, which is not a whole number of Mi or Gi. Set it to nine tenths, such as 900MiB" $limit) }}
{{- end }}
{{- end }}

{{- define "belay.flowSchemas" -}}
# API Priority and Fairness: without these two objects all requests of a ServiceAccount outside kube-system are served at priority level workload-low. They give it
# what the control plane's own controllers have: leader-election for the lease, so that a busy API server does not depose a leader, and workload-high for the rest.
# Both priority levels exist by default. Without them the FlowSchemas have no effect.
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata:
  name: {{ .name }}-leader-election
spec:
  priorityLevelConfiguration:
    name: leader-election
  matchingPrecedence: 150 # after system-leader-election (100)
  distinguisherMethod:
    type: ByUser
  rules:
  - subjects: {{- include "belay.flowSubjects" . | trim | nindent 4 }}
    resourceRules:
    - apiGroups: [coordination.k8s.io]
      resources: [leases]
      verbs: [get, create, update]
      namespaces: ["*"]
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata:
  name: {{ .name }}
spec:
  priorityLevelConfiguration:
    name: workload-high
  matchingPrecedence: 850 # as kube-controller-manager (800), before service-accounts (9000)
  distinguisherMethod:
    type: ByNamespace
  rules:
  - subjects: {{- include "belay.flowSubjects" . | trim | nindent 4 }}
    resourceRules:
    - apiGroups: ["*"]
      resources: ["*"]
      verbs: ["*"]
      namespaces: ["*"]
      clusterScope: true
    nonResourceRules:
    - nonResourceURLs: ["*"]
      verbs: ["*"]
{{- end }}

{{- define "belay.flowSubjects" -}}
{{- range .accounts }}
- kind: ServiceAccount
  serviceAccount: {name: {{ .name }}, namespace: {{ .namespace }}}
{{- end }}
{{- end }}

{{/* A Deployment, and the PodDisruptionBudget beside it. */}}
{{- define "belay.deployment" -}}
{{- $values := .root.Values -}}
{{- $metrics := 8080 }}{{ $health := 8081 }}{{ $address := "" }}
{{- if $values.hostNetwork.enabled }}
{{- /* A port is taken for the whole node, so that each part has its own two. */}}
{{- $part := get (dict "belay-controller" 0 "belay-recovery" 1 "belay-recovery-detector" 1 "belay-recovery-fencer" 2 "belay-recovery-actor" 3) .name }}
{{- $metrics = add $values.hostNetwork.firstPort (mul 2 $part) }}{{ $health = add1 $metrics }}{{ $address = "[$(POD_IP)]" }}
{{- end }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "belay.labels" . | nindent 4 }}
spec:
  # One leads, the other watches along and takes over at once when the first one leaves in good order, else when its lease has run out.
  replicas: {{ .replicas }}
{{- if $values.hostNetwork.enabled }}
  strategy: # the new pod needs the ports of the old one
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
  template:
    metadata:
      labels: {{- include "belay.labels" . | nindent 8 }}
{{- with $values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .name }}
{{- with $values.podAnnotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      serviceAccountName: {{ .account }}
{{- if $values.hostNetwork.enabled }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
{{- end }}
      priorityClassName: {{ $values.priorityClassName }}
{{- with $values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 6 }}
{{- end }}
{{- with $values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
{{- end }}
{{- with $values.tolerations }}
      tolerations: # as for other parts of the control plane
{{- range . }}
      - {{ toJson . }}
{{- end }}
{{- end }}
      topologySpreadConstraints:
      - topologyKey: kubernetes.io/hostname # so that one of them is alive when a node dies
        whenUnsatisfiable: {{ .spread }}
        maxSkew: 1
        labelSelector:
          matchLabels:
            app.kubernetes.io/name: {{ .name }}
        matchLabelKeys: [pod-template-hash]
      - topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: ScheduleAnyway
        maxSkew: 1
        labelSelector:
          matchLabels:
            app.kubernetes.io/name: {{ .name }}
        matchLabelKeys: [pod-template-hash]
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      containers:
      - name: {{ .name }}
        image: {{ .image }}
        imagePullPolicy: {{ $values.imagePullPolicy }}
        args:
{{- range concat .args (list (printf "--health-probe-bind-address=%s:%v" $address $health) (printf "--metrics-bind-address=%s:%v" $address $metrics)) (ternary list (list "--metrics-secure=false") $values.metrics.secure) }}
        - {{ toJson . }}
{{- end }}
        env:
        - name: NODE_NAME
          valueFrom:
            fieldRef: {fieldPath: spec.nodeName}
{{- if $values.hostNetwork.enabled }}
        - name: POD_IP
          valueFrom:
            fieldRef: {fieldPath: status.podIP}
{{- end }}
{{- range $name, $value := .env }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- with $values.env }}{{ toYaml . | nindent 8 }}{{ end }}
        ports:
        - {name: metrics, containerPort: {{ $metrics }}}
        - {name: health, containerPort: {{ $health }}}
        livenessProbe:
          httpGet: {path: /healthz, port: health}
        # A leader that has halted because of another attach/detach controller also reports not ready. A restart would make it continue, so liveness does not fail.
        readinessProbe:
          httpGet: {path: /readyz, port: health}
        resources: {{- toYaml .resources | nindent 10 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
{{- if .tmp }}
        volumeMounts:
        - {name: tmp, mountPath: /tmp}
      volumes:
      - name: tmp
        emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end }}
{{- if and $values.podDisruptionBudgets (gt (int .replicas) 1) }}
---
# A drain moves one after the other, so that one is always warm.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
spec:
  minAvailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow # a pod that is not ready, such as a halted leader, does not block a drain
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
{{- end }}
{{- end }}

{{/* Addresses as peers of a NetworkPolicy. */}}
{{- define "belay.blocks" -}}
{{- range . }}
- ipBlock: {cidr: {{ . }}}
{{- end }}
{{- end }}
