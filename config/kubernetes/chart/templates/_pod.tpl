{{/* What the pods of every kind have in common. */}}
{{- define "stepvault.podBasics" -}}
serviceAccountName: {{ include "stepvault.serviceAccountName" . }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.runAsUser }}
  runAsGroup: {{ .Values.runAsGroup }}
  fsGroup: {{ .Values.runAsGroup }}
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with merge (ternary (dict "kubernetes.io/arch" .Values.arch) dict (ne .Values.arch "")) .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .Values.tolerations }}
{{- if eq .Values.arch "arm64" }}
{{- $tolerations = append $tolerations (dict "key" "kubernetes.io/arch" "operator" "Equal" "value" "arm64" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "stepvault.podMetadata" -}}
labels:
  {{- include "stepvault.labels" . | nindent 2 }}
  {{- if .Values.identity.azureClientId }}
  azure.workload.identity/use: "true"
  {{- end }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "stepvault.volumes" -}}
{{- if ne .Values.kind "Maintenance" -}}
- name: checkpoints
  {{- if .Values.volume.hostPath }}
  hostPath:
    path: {{ .Values.volume.hostPath }}
    type: Directory
  {{- else if .Values.volume.storageClass }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: {{ .Values.volume.storageClass }}
        resources:
          requests:
            storage: {{ .Values.volume.size }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.volume.size }}
  {{- end }}
{{ end -}}
- name: config
  configMap:
    name: {{ include "stepvault.name" . }}
{{- if .Values.podMonitor.tokenSecret }}
- name: metrics-token
  secret:
    secretName: {{ .Values.podMonitor.tokenSecret }}
    defaultMode: 0440
{{- end }}
{{- if include "stepvault.trains" . }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.trainer.sharedMemory }}
{{- if .Values.trainer.readOnlyRootFilesystem }}
- name: tmp
  emptyDir:
    sizeLimit: 10Gi
{{- end }}
{{- end }}
{{- end -}}

{{/* The pod of a training job. */}}
{{- define "stepvault.trainingPod" -}}
metadata:
  {{- include "stepvault.podMetadata" . | nindent 2 }}
spec:
  {{- include "stepvault.podBasics" . | nindent 2 }}
  {{- if eq .Values.kind "IndexedJob" }}
  subdomain: {{ include "stepvault.name" . }}
  {{- end }}
  restartPolicy: Never
  {{- if .Values.sidecar }}
  # The trainer's shutdown, then agent.drain-deadline, and a margin: the agent gets SIGTERM when the trainer has exited.
  {{- else }}
  # agent.drain-deadline, which includes the trainer's own shutdown, and a margin.
  {{- end }}
  terminationGracePeriodSeconds: {{ include "stepvault.gracePeriod" . }}
  {{- if .Values.sidecar }}
  initContainers:
    {{- include "stepvault.sidecar" . | nindent 4 }}
  {{- end }}
  containers:
    - {{ include "stepvault.trainer" . | nindent 6 | trim }}
  # Vault and checkpoints are in one volume, mounted once: hard links cannot cross two mounts.
  volumes:
    {{- include "stepvault.volumes" . | nindent 4 }}
{{- end -}}
